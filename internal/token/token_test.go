package token

import (
	"crypto/sha256"
	"strings"
	"testing"
)

func sample() Token {
	random := make([]byte, RandomBytes)
	for i := range random {
		random[i] = byte(i*7 + 1)
	}
	return New(sha256.Sum256([]byte("ca")), random)
}

func TestComesBack(t *testing.T) {
	want := sample()
	for _, s := range []string{want.String(), " " + want.String() + "\n"} {
		if got, err := Parse(s); err != nil || got != want {
			t.Errorf("%q came back as %+v %v", s, got, err)
		}
	}
	h := want.SecretHash()
	other := want
	other.Secret[31]++
	if !want.Matches(h[:]) || other.Matches(h[:]) || want.Matches(nil) {
		t.Error("only the same secret must match")
	}
}

func TestBadTokens(t *testing.T) {
	good := sample().String()
	parts := strings.Split(good, ".")
	for name, s := range map[string]string{
		"empty":        "",
		"other prefix": "shunt2" + good[6:],
		"three parts":  strings.Join(parts[:3], "."),
		"five parts":   good + ".x",
		"short hash":   strings.Replace(good, parts[1], parts[1][2:], 1),
		"upper hash":   strings.Replace(good, parts[1], strings.ToUpper(parts[1]), 1),
		"long id":      strings.Replace(good, parts[2], parts[2]+"00", 1),
		"short secret": good[:len(good)-4],
		"odd secret":   good[:len(good)-1] + "!",
	} {
		if tok, err := Parse(s); err == nil {
			t.Errorf("%s: %q was read as %+v", name, s, tok)
		} else if strings.Contains(err.Error(), parts[3][:8]) {
			t.Errorf("%s: the error shows the secret: %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sample().String())
	f.Add("shunt1...")
	f.Add("shunt1.00.00.00")
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := Parse(s)
		if err == nil && tok.String() != strings.TrimSpace(s) {
			t.Fatalf("%q was read as %q", s, tok)
		}
	})
}

func TestAccessComesBack(t *testing.T) {
	random := make([]byte, RandomBytes)
	for i := range random {
		random[i] = byte(255 - i)
	}
	want := NewAccess(random)
	if got, err := ParseAccess(want.String()); err != nil || got != want {
		t.Errorf("%s came back as %+v %v", want, got, err)
	}
	h := want.SecretHash()
	other := want
	other.Secret[0]++
	if !want.Matches(h[:]) || other.Matches(h[:]) || want.Matches(nil) {
		t.Error("only the same secret must match")
	}
	s := want.String()
	for _, bad := range []string{"", "shunt_", s[1:], s + "A", s[:len(s)-1], strings.ToUpper(s), strings.Replace(s, "_", "-", 2), "shunt_0123456789ABCDEF_" + s[23:]} {
		if _, err := ParseAccess(bad); err == nil || len(bad) > 30 && strings.Contains(err.Error(), bad[25:]) {
			t.Errorf("%q: error %v", bad, err)
		}
	}
}
