package backup

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"pgregory.net/rapid"
)

// small returns an archive with every kind of content.
func small() *Archive {
	return &Archive{
		Header: Header{
			Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Version: "v1", Schema: "2", Revision: 9, Epoch: 3,
			Cluster: "m1", CA: "00ff", Keys: 2, Counts: map[string]int{"Service": 1},
		},
		Secrets: Secrets{CA: []byte("crt"), CAKey: []byte("key"), StoreKey: []byte{1, 2, 3}},
		Keys:    []Key{{Name: "/shunt/a", Revision: 2, Value: []byte("x")}, {Name: "/shunt/b", Revision: 9, Value: []byte{}}},
	}
}

func encoded(t interface{ Fatal(...any) }, a *Archive) []byte {
	var b bytes.Buffer
	if err := Encode(&b, a); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestRoundTrip: Decode returns the encoded archive.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := small()
		a.Keys = nil
		names := rapid.MapOf(rapid.StringMatching(`/shunt/[a-z/]{1,20}`), rapid.SliceOf(rapid.Byte())).Draw(t, "keys")
		for name, value := range names {
			a.Keys = append(a.Keys, Key{Name: name, Revision: rapid.Int64Range(1, a.Header.Revision).Draw(t, "revision"), Value: append([]byte{}, value...)})
		}
		slices.SortFunc(a.Keys, func(x, y Key) int { return strings.Compare(x.Name, y.Name) })
		a.Header.Keys = len(a.Keys)
		got, err := Decode(encoded(t, a))
		if err != nil || !reflect.DeepEqual(got, a) {
			t.Fatalf("%+v, %v: must be %+v", got, err, a)
		}
	})
}

// TestEveryBitCounts: Decode detects every changed bit, and every missing or added byte.
func TestEveryBitCounts(t *testing.T) {
	whole := encoded(t, small())
	for i := range whole {
		for bit := range 8 {
			damaged := bytes.Clone(whole)
			damaged[i] ^= 1 << bit
			if _, err := Decode(damaged); err == nil {
				t.Fatalf("bit %d of byte %d changed: it is read", bit, i)
			}
		}
		_, err := Decode(whole[:i])
		if err == nil || i >= len(magic) && !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrDamaged) {
			t.Fatalf("the first %d bytes of %d: %v", i, len(whole), err)
		}
	}
	if _, err := Decode(append(bytes.Clone(whole), 0)); err == nil {
		t.Error("a byte was added: it is read")
	}
	if _, err := Decode(append(bytes.Clone(whole), whole...)); err == nil {
		t.Error("it is there twice: it is read")
	}
}

func TestReasons(t *testing.T) {
	whole := encoded(t, small())
	flipped := bytes.Clone(whole)
	flipped[len(whole)/2] ^= 1
	for name, c := range map[string]struct {
		content []byte
		want    error
		text    string
	}{
		"nothing":        {nil, ErrNoBackup, ""},
		"something else": {[]byte("kind: Service\nname: web\n"), ErrNoBackup, ""},
		"cut":            {whole[:len(whole)-1], ErrTruncated, "without an end mark"},
		"changed":        {flipped, ErrDamaged, "SHA-256"},
		"a later format": {ofFormat(whole, Format+1), ErrNewer, "format 2: must be 1 to 1"},
	} {
		if _, err := Decode(c.content); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v: must be %v %q", name, err, c.want, c.text)
		}
	}
}

// TestWriterKeepsTheRules: Encode refuses archives that Decode refuses.
func TestWriterKeepsTheRules(t *testing.T) {
	for name, spoil := range map[string]func(*Archive){
		"no order":        func(a *Archive) { a.Keys[0], a.Keys[1] = a.Keys[1], a.Keys[0] },
		"twice":           func(a *Archive) { a.Keys[1].Name = a.Keys[0].Name },
		"no name":         func(a *Archive) { a.Keys[0].Name = "" },
		"a late revision": func(a *Archive) { a.Keys[1].Revision++ },
		"a wrong count":   func(a *Archive) { a.Header.Keys++ },
	} {
		a := small()
		spoil(a)
		if err := Encode(&bytes.Buffer{}, a); err == nil {
			t.Errorf("%s: it is written", name)
		}
	}
}

// FuzzReadArchive: for any content, also with a correct checksum, Decode returns a valid archive or
// an error.
func FuzzReadArchive(f *testing.F) {
	whole := encoded(f, small())
	f.Add(whole, false)
	f.Add(whole[headBytes:len(whole)-endBytes], true)
	f.Add([]byte{typeHeader, 0xff, 0xff, 0xff, 0xff}, true)
	f.Add([]byte{typeKey, 0, 0, 0, 2, 0xff, 0xff}, true)
	f.Fuzz(func(t *testing.T, content []byte, records bool) {
		if records {
			content = ended(append(whole[:headBytes:headBytes], content...))
		}
		a, err := Decode(content)
		if (a == nil) == (err == nil) {
			t.Fatalf("%v and %v", a, err)
		}
		if a != nil && a.check() != nil {
			t.Fatal(a.check())
		}
	})
}

// TestSeal: a backup opens only with its own key, and contains no readable secret.
func TestSeal(t *testing.T) {
	whole := encoded(t, small())
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	other, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	lock := func(l Lock, err error) Lock {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	unlock := func(u Unlock, err error) Unlock {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	word := lock(PassphraseLock("correct horse battery\n"))
	word.recipients[0].(*age.ScryptRecipient).SetWorkFactor(10)
	for _, c := range []struct {
		name         string
		lock         Lock
		right, wrong Unlock
	}{
		{
			"passphrase", word,
			unlock(PassphraseUnlock("correct horse battery\r\n")), unlock(PassphraseUnlock("correct horse batterz")),
		},
		{
			"recipient", lock(RecipientLock("# ann\n" + identity.Recipient().String() + "\n")),
			unlock(IdentityUnlock(identity.String())), unlock(IdentityUnlock(other.String())),
		},
	} {
		var sealed bytes.Buffer
		if err := c.lock.Seal(&sealed, whole); err != nil {
			t.Fatal(err)
		}
		content := sealed.Bytes()
		if !Sealed(content) || bytes.Contains(content, []byte("/shunt/")) {
			t.Errorf("%s: it is readable", c.name)
		}
		if got, err := c.right.Open(content); err != nil || !bytes.Equal(got, whole) {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, err := c.wrong.Open(content); err == nil || !strings.Contains(err.Error(), "is not the one that it was encrypted for") {
			t.Errorf("%s: the wrong key: %v", c.name, err)
		}
		if _, err := (Unlock{}).Open(content); !errors.Is(err, ErrSealed) {
			t.Errorf("%s: no key: %v", c.name, err)
		}
		if _, err := c.right.Open(content[:len(content)-1]); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrTruncated) {
			t.Errorf("%s: truncated: %v", c.name, err)
		}
		content[len(content)-20] ^= 1
		if _, err := c.right.Open(content); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: changed: %v", c.name, err)
		}
	}
}

// TestNoErrorTellsSecrets: errors about a passphrase or a key do not contain it.
func TestNoErrorTellsSecrets(t *testing.T) {
	for _, secret := range []string{"hunter2", "first line is long\nsecond line"} {
		if _, err := PassphraseLock(secret); err == nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "first line") {
			t.Errorf("passphrase %q: %v", secret, err)
		}
	}
	const wrong = "AGE-SECRET-KEY-1VERYSECRET"
	if _, err := IdentityUnlock(wrong); err == nil || strings.Contains(err.Error(), "VERYSECRET") {
		t.Errorf("identity: %v", err)
	}
}
