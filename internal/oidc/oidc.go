// Package oidc verifies ID tokens of an OpenID Connect provider, and returns their owner and role.
// It is the only importer of go-oidc.
package oidc

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	gooidc "github.com/coreos/go-oidc/v3/oidc"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/pki"
)

const (
	// skew is how far the provider's clock may be behind; go-oidc itself tolerates five minutes for
	// not-before.
	skew = 30 * time.Second
	// callTimeout bounds each call to the provider.
	callTimeout = 10 * time.Second
	// firstRetry to lastRetry, doubling, are the pauses before retries while the provider cannot be
	// reached.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// refreshEvery is the maximum time for which a key is still accepted after the provider removed
	// it.
	refreshEvery = 10 * time.Minute
	// maxKnown is the maximum number of cached tokens, at 150 bytes each.
	maxKnown = 4096
)

// Reasons why a token gives no identity. Other errors describe the fault of the token; none
// contains the token.
var (
	// ErrNotReady: the provider has not been reached yet.
	ErrNotReady = errors.New("the OIDC issuer has not been reached yet")
	// ErrNoRole: the token is valid, but none of its groups has a role.
	ErrNoRole = errors.New("none of its groups has a role")
)

// Role is the role of a group.
type Role struct{ Group, Role, Tenant string }

// ParseRole reads "GROUP=admin", "GROUP=viewer" or "GROUP=tenant:NAME". The group may contain "=".
func ParseRole(s string) (Role, error) {
	i := strings.LastIndex(s, "=")
	if i > 0 {
		role, tenant, named := strings.Cut(s[i+1:], ":")
		r := Role{s[:i], role, tenant}
		switch {
		case role == pki.RoleTenant && tenant != "", (role == pki.RoleAdmin || role == pki.RoleViewer) && !named:
			return r, nil
		}
	}
	return Role{}, fmt.Errorf("%q: must be GROUP=admin, GROUP=viewer or GROUP=tenant:NAME", s)
}

// Options configures a Verifier.
type Options struct {
	// Issuer is the provider's URL, https, as in its tokens.
	Issuer string
	// ClientID must be an audience of the token.
	ClientID string
	// RoleClaim names the claim with the groups, a text or a list of texts.
	RoleClaim string
	// Roles of groups; the first match applies.
	Roles []Role
	// CA holds the CAs for the issuer's certificate; nil: the system's.
	CA    *x509.CertPool
	Clock clock.Clock
	Log   *slog.Logger
}

// CheckIssuer refuses URLs that cannot be the issuer of tokens.
func CheckIssuer(issuer string) error {
	u, err := url.Parse(issuer)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%q: must be a URL such as https://id.example.org", issuer)
	}
	return nil
}

// Check returns the first fault of the options.
func (o Options) Check() error {
	if err := CheckIssuer(o.Issuer); err != nil {
		return fmt.Errorf("issuer: %w", err)
	}
	switch {
	case o.ClientID == "":
		return errors.New("client id: must not be empty")
	case o.RoleClaim == "":
		return errors.New("role claim: must not be empty")
	case len(o.Roles) == 0:
		return errors.New("roles: must not be empty: nobody could do anything")
	}
	return nil
}

// Identity is the owner of a valid token.
type Identity struct {
	// Name is the e-mail address if the provider has verified it, else the subject.
	Name, Role, Tenant string
	Expires            time.Time
}

// Verifier verifies ID tokens. It is safe for concurrent use.
type Verifier struct {
	o    Options
	http *http.Client
	keys keys

	mu sync.Mutex
	// verifier is nil until the provider was reached.
	verifier *gooidc.IDTokenVerifier
	// known caches verified tokens by their SHA-256.
	known map[[sha256.Size]byte]Identity
	// forgotten counts how often the cache was cleared: a token that was verified before a clear is
	// not cached after it.
	forgotten uint64
}

// New returns a verifier; it accepts no token until Run has reached the provider.
func New(o Options) (*Verifier, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.CA}, Proxy: http.ProxyFromEnvironment}
	v := &Verifier{o: o, http: &http.Client{Transport: transport, Timeout: callTimeout}, known: map[[sha256.Size]byte]Identity{}}
	v.keys.fetch, v.keys.clock, v.keys.changed = v.fetchKeys, o.Clock, v.forget
	return v, nil
}

// Run retries until the provider is reached, and then refreshes its keys until ctx ends.
func (v *Verifier) Run(ctx context.Context) {
	defer v.http.CloseIdleConnections()
	retry := firstRetry
	for v.discover(ctx) != nil {
		if !v.sleep(ctx, retry) {
			return
		}
		retry = min(2*retry, lastRetry)
	}
	for v.sleep(ctx, refreshEvery) {
		if err := v.keys.refresh(ctx); err != nil && ctx.Err() == nil {
			v.o.Log.Warn("cannot refresh the keys of the OIDC issuer, those there are go on", "issuer", v.o.Issuer, "error", err)
		}
	}
}

func (v *Verifier) sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-v.o.Clock.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// discover reads the provider's configuration and keys.
func (v *Verifier) discover(ctx context.Context) error {
	p, err := gooidc.NewProvider(gooidc.ClientContext(ctx, v.http), v.o.Issuer)
	var meta struct {
		JWKS string `json:"jwks_uri"`
	}
	if err == nil {
		err = p.Claims(&meta)
	}
	if err == nil {
		v.keys.from(meta.JWKS)
		err = v.keys.refresh(ctx)
	}
	if err != nil {
		if ctx.Err() == nil {
			v.o.Log.Warn("cannot reach the OIDC issuer: its tokens are refused until it answers", "issuer", v.o.Issuer, "error", err)
		}
		return err
	}
	v.o.Log.Info("OIDC issuer is reached", "issuer", v.o.Issuer)
	v.ready()
	return nil
}

// ready enables the verification of tokens.
func (v *Verifier) ready() {
	verifier := gooidc.NewVerifier(v.o.Issuer, &v.keys, &gooidc.Config{
		ClientID: v.o.ClientID, SupportedSigningAlgs: algorithms(),
		Now: func() time.Time { return v.o.Clock.Now().Add(-skew) },
	})
	v.mu.Lock()
	defer v.mu.Unlock()
	v.verifier = verifier
}

// Known returns the identity of a cached token that has not expired. It costs one hash.
func (v *Verifier) Known(token string) (Identity, bool) {
	h := sha256.Sum256([]byte(token))
	v.mu.Lock()
	defer v.mu.Unlock()
	id, ok := v.known[h]
	if ok && !id.Expires.After(v.o.Clock.Now()) {
		delete(v.known, h)
		return Identity{}, false
	}
	return id, ok
}

// Verify returns the identity of a token. It may fetch the provider's keys, at most once a second.
func (v *Verifier) Verify(ctx context.Context, token string) (Identity, error) {
	if id, ok := v.Known(token); ok {
		return id, nil
	}
	v.mu.Lock()
	verifier, forgotten := v.verifier, v.forgotten
	v.mu.Unlock()
	if verifier == nil {
		return Identity{}, ErrNotReady
	}
	t, err := verifier.Verify(ctx, token)
	if err != nil {
		return Identity{}, err
	}
	id, err := v.identity(t)
	if err != nil {
		return id, err
	}
	v.remember(token, id, forgotten)
	return id, nil
}

// remember caches a token unless the cache was cleared since its verification, because the reason
// may be the key that it was verified with.
func (v *Verifier) remember(token string, id Identity, forgotten uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.forgotten != forgotten {
		return
	}
	if len(v.known) >= maxKnown {
		clear(v.known)
	}
	v.known[sha256.Sum256([]byte(token))] = id
}

// forget clears the cache.
func (v *Verifier) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.known)
	v.forgotten++
}

// identity returns the owner of the token; with ErrNoRole only the name.
func (v *Verifier) identity(t *gooidc.IDToken) (Identity, error) {
	var claims map[string]any
	if err := t.Claims(&claims); err != nil {
		return Identity{}, err
	}
	id := Identity{Name: t.Subject, Expires: t.Expiry.Add(skew)}
	if email, ok := claims["email"].(string); ok && email != "" && claims["email_verified"] == true {
		id.Name = email
	}
	groups := texts(claims[v.o.RoleClaim])
	for _, r := range v.o.Roles {
		if slices.Contains(groups, r.Group) {
			id.Role, id.Tenant = r.Role, r.Tenant
			return id, nil
		}
	}
	return id, ErrNoRole
}

// texts reads a claim that is a text or a list of texts.
func texts(claim any) []string {
	switch c := claim.(type) {
	case string:
		return []string{c}
	case []any:
		var out []string
		for _, v := range c {
			if s, ok := v.(string); ok {
				out = append(out, s)
			}
		}
		return out
	}
	return nil
}
