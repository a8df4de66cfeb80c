package oidc

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/shuntlb/shunt/internal/clock"
)

// oddKey calls a test each time it verifies a signature; every signature is valid.
type oddKey struct{ verifying func() }

func (k oddKey) VerifyPayload([]byte, []byte, jose.SignatureAlgorithm) error {
	k.verifying()
	return nil
}

// provider holds the keys that a verifier fetches.
type provider struct {
	mu   sync.Mutex
	keys []jose.JSONWebKey
}

func (p *provider) has(keys ...jose.JSONWebKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = keys
}

func (p *provider) fetch(context.Context, string) (*jose.JSONWebKeySet, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &jose.JSONWebKeySet{Keys: p.keys}, nil
}

// verifierOf returns a verifier that has reached a provider.
func verifierOf(t *testing.T, p *provider) *Verifier {
	t.Helper()
	v, err := New(Options{
		Issuer: "https://id.example.org", ClientID: "shunt", RoleClaim: "groups", Roles: []Role{{Group: "operators", Role: "admin"}},
		Clock: clock.NewFake(time.Now()),
	})
	if err != nil {
		t.Fatal(err)
	}
	v.keys.fetch = p.fetch
	if err := v.keys.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.ready()
	return v
}

// idToken returns a token of an operator, signed by a key.
func idToken(t *testing.T, key string) string {
	t.Helper()
	part := func(fields map[string]any) string {
		content, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(content)
	}
	now := time.Now()
	return part(map[string]any{"alg": "ES256", "kid": key}) + "." + part(map[string]any{
		"iss": "https://id.example.org", "aud": "shunt", "sub": "ann", "groups": "operators", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}) + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 64))
}

// TestTokenOfAKeyThatWasTakenBackIsNotRemembered: a token of a removed key is not cached although
// it was verified before, because a refresh between its verification and its caching has nothing to
// drop yet.
func TestTokenOfAKeyThatWasTakenBackIsNotRemembered(t *testing.T) {
	p := &provider{}
	var v *Verifier
	p.has(jose.JSONWebKey{KeyID: "a", Key: oddKey{func() {
		p.has()
		if err := v.keys.refresh(t.Context()); err != nil {
			t.Error(err)
		}
	}}})
	v = verifierOf(t, p)
	token := idToken(t, "a")
	if id, err := v.Verify(t.Context(), token); err != nil || id.Role != "admin" {
		t.Fatalf("while the key was good: %v %v", id, err)
	}
	if id, known := v.Known(token); known {
		t.Errorf("%v is remembered by a key that the provider took back", id)
	}
	if id, err := v.Verify(t.Context(), token); err == nil {
		t.Errorf("%v gets in by a key that the provider took back", id)
	}
}

// TestKeysChangeWhileTokensAreVerified is for the race detector: in the end only tokens of current
// keys are cached.
func TestKeysChangeWhileTokensAreVerified(t *testing.T) {
	p := &provider{}
	one, other := jose.JSONWebKey{KeyID: "a", Key: oddKey{func() {}}}, jose.JSONWebKey{KeyID: "b", Key: oddKey{func() {}}}
	p.has(one)
	v := verifierOf(t, p)
	tokens := []string{idToken(t, "a"), idToken(t, "b")}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 100 {
				_, _ = v.Verify(t.Context(), tokens[i%2])
			}
		})
	}
	for i := range 100 {
		p.has([]jose.JSONWebKey{one, other}[i%2])
		if err := v.keys.refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	p.has(other)
	if err := v.keys.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if _, err := v.Verify(t.Context(), tokens[1]); err != nil {
		t.Errorf("the token of a key that there is: %v", err)
	}
	if _, known := v.Known(tokens[0]); known {
		t.Error("the token of a key that was taken back is remembered")
	}
}
