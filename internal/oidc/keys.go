package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/shuntlb/shunt/internal/clock"
)

const (
	// fetchPace is the minimum time between two fetches that tokens cause, so that a client that
	// sends tokens with nonexistent keys cannot make the manager flood the provider.
	fetchPace = time.Second
	// maxKeysBytes: a provider has a handful of keys of a kilobyte.
	maxKeysBytes = 1 << 20
)

// signed lists the accepted signature algorithms: none with a shared secret, and not "none".
var signed = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

func algorithms() []string {
	out := make([]string, len(signed))
	for i, a := range signed {
		out[i] = string(a)
	}
	return out
}

// keys holds the provider's keys of the last fetch. Keys that the provider removed are dropped at
// the next fetch; all stay while it cannot be reached. It implements go-oidc's KeySet, because
// go-oidc's own never drops a key.
type keys struct {
	fetch   func(ctx context.Context, url string) (*jose.JSONWebKeySet, error)
	clock   clock.Clock
	changed func()

	// fetching is held during a fetch, so that all callers that need the same new key wait for one
	// fetch.
	fetching sync.Mutex

	mu      sync.Mutex
	url     string
	set     *jose.JSONWebKeySet
	fetched time.Time
}

func (k *keys) from(url string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.url = url
}

// VerifySignature implements go-oidc's KeySet. It fetches the keys if the key of the token is
// unknown.
func (k *keys) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	jws, err := jose.ParseSigned(token, signed)
	if err != nil {
		return nil, errors.New("malformed token")
	}
	if payload, ok := k.try(jws); ok {
		return payload, nil
	}
	k.fetching.Lock()
	defer k.fetching.Unlock()
	if payload, ok := k.try(jws); ok {
		return payload, nil
	}
	k.mu.Lock()
	recent := k.clock.Now().Sub(k.fetched) < fetchPace
	k.mu.Unlock()
	if !recent {
		if err := k.refreshLocked(ctx); err != nil {
			return nil, fmt.Errorf("fetch keys: %w", err)
		}
		if payload, ok := k.try(jws); ok {
			return payload, nil
		}
	}
	return nil, errors.New("signed with no key of the issuer")
}

func (k *keys) try(jws *jose.JSONWebSignature) ([]byte, bool) {
	k.mu.Lock()
	set := k.set
	k.mu.Unlock()
	if set == nil || len(jws.Signatures) != 1 {
		return nil, false
	}
	id := jws.Signatures[0].Header.KeyID
	for i := range set.Keys {
		if id != "" && set.Keys[i].KeyID != id {
			continue
		}
		if payload, err := jws.Verify(&set.Keys[i]); err == nil {
			return payload, true
		}
	}
	return nil, false
}

// refresh fetches the keys.
func (k *keys) refresh(ctx context.Context) error {
	k.fetching.Lock()
	defer k.fetching.Unlock()
	return k.refreshLocked(ctx)
}

// refreshLocked requires fetching to be held.
func (k *keys) refreshLocked(ctx context.Context) error {
	k.mu.Lock()
	url := k.url
	k.fetched = k.clock.Now()
	k.mu.Unlock()
	set, err := k.fetch(ctx, url)
	if err != nil {
		return err
	}
	k.mu.Lock()
	same := reflect.DeepEqual(k.set, set)
	k.set = set
	k.mu.Unlock()
	if !same {
		k.changed()
	}
	return nil
}

// fetchKeys fetches a key set from the provider. It keeps only public keys.
func (v *Verifier) fetchKeys(ctx context.Context, url string) (*jose.JSONWebKeySet, error) {
	// The fetch must not fail when the caller with one token is cancelled, because others wait for
	// the same keys.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := v.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: status %s", url, res.Status)
	}
	var all jose.JSONWebKeySet
	if err := json.NewDecoder(io.LimitReader(res.Body, maxKeysBytes)).Decode(&all); err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	set := &jose.JSONWebKeySet{}
	for _, key := range all.Keys {
		if key.IsPublic() && key.Valid() && (key.Use == "sig" || key.Use == "") {
			set.Keys = append(set.Keys, key)
		}
	}
	return set, nil
}
