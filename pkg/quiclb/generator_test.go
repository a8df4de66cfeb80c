package quiclb

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func newGenerator(t rapid.TB, cs Configs) *Generator {
	t.Helper()
	g, err := NewGenerator(cs)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestGeneratorProperty: for any configurations, and any number of replacements by others of the
// same length, each CID belongs to the newest active one, names the server, and is unique.
func TestGeneratorProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cs := anyConfigs(t)
		newest, _ := cs.Newest()
		g := newGenerator(t, cs)
		seen := map[string]bool{}
		for range rapid.IntRange(1, 5).Draw(t, "turns") {
			c, err := NewCodec(newest.Scheme())
			if err != nil {
				t.Fatal(err)
			}
			for range 20 {
				cid := g.Next()
				if len(cid) != g.Length() || seen[string(cid[1:])] {
					t.Fatalf("%x has %d bytes, want %d, seen %v", cid, len(cid), g.Length(), seen[string(cid[1:])])
				}
				seen[string(cid[1:])] = true
				if id, _, err := c.Decode(cid); err != nil || !bytes.Equal(id, newest.ServerID) {
					t.Fatalf("server id %x, %v, want %x", id, err, newest.ServerID)
				}
			}
			if newest.Format == QUICLB || newest.Format == Plain {
				newest.ID = uint8(rapid.IntRange(0, MaxID).Draw(t, "next id"))
				newest.Key[0] = 0
				if newest.Format == QUICLB {
					newest.Key[0] = rapid.ByteRange(0, 1).Draw(t, "next key")
				}
			}
			if err := g.Set(Configs{newest}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestGeneratorIsConcurrent: eight goroutines get different CIDs while a ninth replaces the
// configurations.
func TestGeneratorIsConcurrent(t *testing.T) {
	const each = 5000
	one := Config{ID: 1, Format: QUICLB, Key: Key{1}, ServerID: []byte{0, 0x70, 0}, NonceLength: 8, Active: true}
	two := one
	two.ID, two.Key = 2, Key{2}
	g := newGenerator(t, Configs{one})
	stop := make(chan struct{})
	var setting, making sync.WaitGroup
	setting.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := g.Set(Configs{[]Config{one, two}[i%2]}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var made [8][]string
	for i := range made {
		making.Go(func() {
			for range each {
				made[i] = append(made[i], string(g.Next()[1:]))
				// read without a lock: the race detector checks it against Set
				if n := len(made[i][0]) + 1; g.Length() != n {
					t.Errorf("Length is %d, ids have %d bytes", g.Length(), n)
					return
				}
			}
		})
	}
	making.Wait()
	close(stop)
	setting.Wait()
	seen := map[string]bool{}
	for _, cids := range made {
		for _, cid := range cids {
			if seen[cid] {
				t.Fatalf("%x was made twice", cid)
			}
			seen[cid] = true
		}
	}
	if want := each * len(made); len(seen) != want {
		t.Fatalf("%d CIDs, want %d", len(seen), want)
	}
}

// TestNoncesCount: a counter from any start returns every value of its length once, and then none;
// a shuffled one continues.
func TestNoncesCount(t *testing.T) {
	for _, format := range []Format{QUICLB, Plain} {
		n := newNonces(Scheme{Format: format, NonceLength: 2})
		seen := map[string]bool{}
		for i := range 1 << 16 {
			if left := n.left(); format == QUICLB && left != 1<<16-uint64(i) {
				t.Fatalf("%d left after %d", left, i)
			}
			value, ok := n.next([]byte{7})
			if !ok || value[0] != 7 || len(value) != 3 || seen[string(value)] {
				t.Fatalf("%s: value %d is %x, %v", format, i, value, ok)
			}
			seen[string(value)] = true
		}
		for range 3 {
			value, ok := n.next(nil)
			if ok != (format == Plain) || ok && !seen["\x07"+string(value)] {
				t.Fatalf("%s: after all values: %x, %v", format, value, ok)
			}
		}
	}
	if got := newNonces(Scheme{Format: QUICLB, NonceLength: 8}).left(); got != math.MaxUint64 {
		t.Errorf("%d left of 8 bytes", got)
	}
}

// TestNoncesCarry: a counter carries over the end of its value and over all its bytes.
func TestNoncesCarry(t *testing.T) {
	n := &nonces{length: 4, start: [maxNonce]byte{0xff, 0xff, 0xff, 0xfe}, limit: 1 << 32}
	var got []string
	for range 3 {
		value, _ := n.next(nil)
		got = append(got, hex.EncodeToString(value))
	}
	if want := "[fffffffe ffffffff 00000000]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}

// TestGeneratorExhausted: after the last nonce, CIDs are unroutable, encode their length, and still
// differ.
func TestGeneratorExhausted(t *testing.T) {
	g := newGenerator(t, Configs{{ID: 2, Format: QUICLB, ServerID: []byte{0, 0x70, 0}, NonceLength: 4, Active: true}})
	g.minting.Load().nonces.given.Store(1<<32 - 1)
	if cid := g.Next(); cid[0]>>5 != 2 || g.Left() != 0 {
		t.Errorf("the last CID is %x, %d left", cid, g.Left())
	}
	one, two := g.Next(), g.Next()
	if one[0] != 0xe7 || two[0] != 0xe7 || len(one) != 8 || bytes.Equal(one, two) {
		t.Errorf("%x and %x, want 8 bytes that begin with e7", one, two)
	}
}

// TestGeneratorKeepsLength: a configuration that a running server cannot use changes nothing.
func TestGeneratorKeepsLength(t *testing.T) {
	c := Config{ID: 1, Format: QUICLB, Key: Key{1}, ServerID: []byte{0, 0x70, 0}, NonceLength: 13, Active: true}
	g := newGenerator(t, Configs{c})
	longer := c
	longer.ID, longer.NonceLength = 2, 14
	err := g.Set(Configs{longer})
	if err == nil || !strings.Contains(err.Error(), "connection ids of 18 bytes: must be 17") {
		t.Errorf("another length: %v", err)
	}
	if err := g.Set(nil); err == nil {
		t.Error("no configuration was taken")
	}
	if cid := g.Next(); cid[0]>>5 != 1 || g.Configs()[0].ID != 1 {
		t.Errorf("CID %x after what was refused", cid)
	}
	if _, err := NewGenerator(nil); err == nil {
		t.Error("a generator without a configuration")
	}
}

// TestInstances: processes behind one server id make CIDs of the same member.
func TestInstances(t *testing.T) {
	c := Config{Format: QUICLB, ServerID: []byte{0xab, 0xc0, 0}, NonceLength: 13, Active: true}
	i, err := c.WithInstance(0x123)
	if err != nil {
		t.Fatal(err)
	}
	if hex.EncodeToString(i.ServerID) != "abc123" || c.ServerID[2] != 0 || Member(i.ServerID) != 0xabc || Instance(i.ServerID) != 0x123 {
		t.Errorf("%x of %x", i.ServerID, c.ServerID)
	}
	if _, err := c.WithInstance(MaxInstance + 1); err == nil {
		t.Error("instance 4096")
	}
	if _, err := i.WithInstance(1); err == nil {
		t.Error("an instance of an instance")
	}
	c.ServerID = []byte{0xab, 0xc0}
	if _, err := c.WithInstance(1); err == nil {
		t.Error("an instance in 2 bytes")
	}
}

// TestResetTokens: each configuration has its own key, and a library can compute the token from it.
func TestResetTokens(t *testing.T) {
	one := Config{ID: 1, Format: QUICLB, Key: Key{1}, ServerID: []byte{0, 0x70, 0}, NonceLength: 13, Active: true}
	changes := map[string]func(*Config){
		"id": func(c *Config) { c.ID = 2 }, "key": func(c *Config) { c.Key[3]++ }, "server id": func(c *Config) { c.ServerID = []byte{0, 0x71, 0} },
		"nonce": func(c *Config) { c.NonceLength = 12 }, "format": func(c *Config) { c.Format = Plain },
	}
	secret := []byte("0123456789abcdef")
	for what, change := range changes {
		other := one
		change(&other)
		if other.ResetKey(secret) == one.ResetKey(secret) {
			t.Errorf("another %s has the same key", what)
		}
	}
	if one.ResetKey([]byte("fedcba9876543210")) == one.ResetKey(secret) {
		t.Error("another secret has the same key")
	}
	two := one
	two.ID, two.Key = 2, Key{2}
	both := Configs{one, two}
	cid := newGenerator(t, Configs{two}).Next()
	key := two.ResetKey(secret)
	h := hmac.New(sha256.New, key[:])
	h.Write(cid)
	if token, ok := both.ResetToken(secret, cid); !ok || !bytes.Equal(token[:], h.Sum(nil)[:16]) {
		t.Errorf("token %x, %v", token, ok)
	}
	if _, ok := both.ResetToken(secret, cid[:16]); ok {
		t.Error("a token for a CID that is too short")
	}
	if _, ok := (Configs{one}).ResetToken(secret, cid); ok {
		t.Error("a token for a CID of another configuration")
	}
}
