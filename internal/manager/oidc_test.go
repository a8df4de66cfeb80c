package manager_test

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/oidc"
)

// dex is a real OpenID Connect provider in a process of its own: test/dex.
type dex struct {
	t          *testing.T
	binary, ca string
	issuer     string
	listen     string
	stop       func()
}

// dexDir is the directory of the program, for all tests. TestMain removes it.
var dexDir string

// buildDex builds the program once.
var buildDex = sync.OnceValues(func() (string, error) {
	var err error
	if dexDir, err = os.MkdirTemp("", "shunt-dex"); err != nil {
		return "", err
	}
	binary := filepath.Join(dexDir, "dex")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = "../../test/dex"
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	return binary, build.Run()
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dexDir != "" {
		os.RemoveAll(dexDir)
	}
	os.Exit(code)
}

func startDex(t *testing.T) *dex {
	t.Helper()
	binary, err := buildDex()
	if err != nil {
		t.Fatal(err)
	}
	d := &dex{t: t, binary: binary, ca: filepath.Join(t.TempDir(), "ca.pem"), listen: loopback()}
	d.start()
	t.Cleanup(func() { d.stop() })
	return d
}

// start runs dex at the address of its last run, with new signing keys.
func (d *dex) start() {
	d.t.Helper()
	cmd := exec.Command(d.binary, "-listen", d.listen, "-ca", d.ca)
	cmd.Stderr = d.t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.stop = sync.OnceFunc(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		d.t.Fatalf("dex did not start: %v", err)
	}
	d.issuer = strings.TrimSpace(line)
	d.listen = strings.TrimPrefix(d.issuer, "https://")
}

func (d *dex) pool() *x509.CertPool {
	text, err := os.ReadFile(d.ca)
	if err != nil {
		d.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return pool
}

// idToken logs a person in and returns the ID token.
func (d *dex) idToken(client, person string) string {
	d.t.Helper()
	form := url.Values{"grant_type": {"password"}, "username": {person + "@example.org"}, "password": {"secret"}, "scope": {"openid email groups"}}
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodPost, d.issuer+"/token", strings.NewReader(form.Encode()))
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth(client, "client")
	res, err := (&rig{t: d.t}).httpClient(&tls.Config{RootCAs: d.pool()}).Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct {
		IDToken string `json:"id_token"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || answer.IDToken == "" {
		d.t.Fatalf("dex: %s, no ID token, %v", res.Status, err)
	}
	return answer.IDToken
}

// verifier trusts this dex, and runs until the test ends.
func (d *dex) verifier(at clock.Clock, out *lines) *oidc.Verifier {
	d.t.Helper()
	var roles []oidc.Role
	for _, s := range []string{"operators=admin", "shop-team=tenant:shop"} {
		r, err := oidc.ParseRole(s)
		if err != nil {
			d.t.Fatal(err)
		}
		roles = append(roles, r)
	}
	v, err := oidc.New(oidc.Options{Issuer: d.issuer, ClientID: "shunt", RoleClaim: "groups", Roles: roles, CA: d.pool(), Clock: at, Log: out.logger()})
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); v.Run(ctx) }()
	d.t.Cleanup(func() { cancel(); <-done })
	return v
}

// eventually advances the clock by a second at a time until there is no error.
func eventually(t *testing.T, at *clock.Fake, call func() error) {
	t.Helper()
	for tries := 0; ; tries++ {
		err := call()
		if err == nil {
			return
		}
		if tries == maxTries {
			t.Fatal(err)
		}
		at.Advance(time.Second)
		<-time.After(10 * time.Millisecond)
	}
}

func TestOIDC(t *testing.T) {
	d := startDex(t)
	var out lines
	at := clock.NewFake(time.Now())
	r := newRigOf(t, rig{clock: at, oidc: d.verifier(at, &out)})
	r.apply(network(), hostNode(1), tenant("shop", 0), ofTenant("shop-web", "shop", 10), ofTenant("media-web", "media", 20))
	bob, ann := d.idToken("shunt", "bob"), d.idToken("shunt", "ann")
	eventually(t, at, func() error { return get(t, r.bearer(bob)) })
	if err := applyAs(t, r.bearer(bob), network()); err != nil {
		t.Errorf("bob of the operators applies: %v", err)
	}
	if err := applyAs(t, r.bearer(ann), ofTenant("shop-web", "shop", 11)); err != nil {
		t.Errorf("ann of shop applies: %v", err)
	}
	if err := deleteAs(t, r.bearer(ann), "Service", "media-web"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("ann of shop deletes another's: %v", err)
	}
	if err := get(t, r.bearer(d.idToken("shunt", "eve"))); connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), "oidc eve@example.org has no role here") {
		t.Errorf("eve without a group: %v", err)
	}

	other := startDex(t)
	for name, tok := range map[string]string{
		"another audience":          d.idToken("other", "bob"),
		"another issuer":            other.idToken("shunt", "bob"),
		"alg none":                  forge(bob, `{"alg":"none"}`, nil),
		"signed with a shared text": forge(bob, `{"alg":"HS256"}`, []byte(d.issuer)),
		"claims of another":         splice(bob, ann),
		"no signature":              bob[:strings.LastIndex(bob, ".")+1],
		"no token":                  "a.b.c",
	} {
		if err := get(t, r.bearer(tok)); connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), "unknown, expired, revoked or wrong") {
			t.Errorf("%s: %v", name, err)
		}
	}

	// The provider restarts with other keys: their tokens are accepted immediately, and those of
	// the old keys are refused.
	d.stop()
	if err := get(t, r.bearer(bob)); err != nil {
		t.Errorf("while the provider is away: %v", err)
	}
	d.start()
	at.Advance(2 * time.Second)
	fresh := d.idToken("shunt", "bob")
	if err := get(t, r.bearer(fresh)); err != nil {
		t.Errorf("a token of a new key: %v", err)
	}
	if err := get(t, r.bearer(bob)); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a token of a key that is gone: %v", err)
	}

	at.Advance(time.Hour + time.Minute)
	if err := get(t, r.bearer(fresh)); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("an hour later: %v", err)
	}
}

// TestOIDCIssuerIsDown: a manager starts without its issuer, reports this, and accepts its tokens
// once the issuer is up.
func TestOIDCIssuerIsDown(t *testing.T) {
	d := startDex(t)
	bob := d.idToken("shunt", "bob")
	d.stop()
	var out lines
	at := clock.NewFake(time.Now())
	r := newRigOf(t, rig{clock: at, oidc: d.verifier(at, &out)})
	if err := get(t, r.admin); err != nil {
		t.Errorf("a certificate while the issuer is down: %v", err)
	}
	if err := get(t, r.bearer(bob)); connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), "the OIDC issuer has not been reached yet") {
		t.Errorf("an ID token while the issuer is down: %v", err)
	}
	eventually(t, at, func() error {
		if !strings.Contains(out.String(), "cannot reach the OIDC issuer") {
			return errors.New("the log does not say that the issuer cannot be reached")
		}
		return nil
	})
	d.start()
	fresh := d.idToken("shunt", "bob")
	eventually(t, at, func() error { return get(t, r.bearer(fresh)) })
}

// forge replaces the header of a token and signs with a shared secret, or not at all.
func forge(token, header string, secret []byte) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + strings.Split(token, ".")[1]
	if secret == nil {
		return text + "."
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// splice combines the claims of one token with the signature of another.
func splice(claims, signature string) string {
	a, b := strings.Split(claims, "."), strings.Split(signature, ".")
	return a[0] + "." + a[1] + "." + b[2]
}
