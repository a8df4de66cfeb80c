package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// dexProcess is a real OpenID Connect provider: the program of test/dex.
type dexProcess struct {
	t                          *testing.T
	binary, ca, listen, issuer string
	cmd                        *exec.Cmd
}

func newDexProcess(t *testing.T) *dexProcess {
	t.Helper()
	dir := t.TempDir()
	d := &dexProcess{t: t, binary: filepath.Join(dir, "dex"), ca: filepath.Join(dir, "ca.pem"), listen: fmt.Sprintf("127.79.%d.%d:0", os.Getpid()>>8&255, os.Getpid()&255)}
	build := exec.Command("go", "build", "-o", d.binary, ".")
	build.Dir, build.Env = "../../test/dex", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return d
}

// start runs the provider at the address of its last run, with new signing keys. lifetime is that
// of ID tokens.
func (d *dexProcess) start(lifetime time.Duration) {
	d.t.Helper()
	if d.cmd != nil {
		d.cmd.Process.Kill()
		d.cmd.Wait()
	}
	d.cmd = exec.Command(d.binary, "-listen", d.listen, "-ca", d.ca, "-lifetime", lifetime.String())
	d.cmd.Stderr = d.t.Output()
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	kill := d.cmd.Process.Kill
	d.t.Cleanup(func() { kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		d.t.Fatalf("dex did not start: %v", err)
	}
	d.issuer = strings.TrimSpace(line)
	d.listen = strings.TrimPrefix(d.issuer, "https://")
}

// idToken logs a user in at a client of the provider and returns the ID token.
func (d *dexProcess) idToken(client, person string) string {
	d.t.Helper()
	text, err := os.ReadFile(d.ca)
	if err != nil {
		d.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	form := url.Values{"grant_type": {"password"}, "username": {person + "@example.org"}, "password": {"secret"}, "scope": {"openid email groups"}}
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodPost, d.issuer+"/token", strings.NewReader(form.Encode()))
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth(client, "client")
	hc := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}}
	res, err := hc.Do(req)
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

// TestPeopleOfAProvider checks that `shunt manager` accepts ID tokens of a real provider, with the
// roles of their groups. Other tokens are refused, and the audit log has the reason. No part of a
// token appears in the audit log, the log or an error to a caller.
func TestPeopleOfAProvider(t *testing.T) {
	d, p := newDexProcess(t), newManagerProcess(t)
	d.start(time.Hour)
	p.args = []string{"-v", "--oidc-issuer", d.issuer, "--oidc-client-id", "shunt", "--oidc-ca", d.ca, "--oidc-role", "operators=admin", "--oidc-role", "shop-team=tenant:shop"}
	p.start()
	said, logged := followed(p.stderr)
	p.must(testNetwork+"---\nkind: Tenant\nname: shop\n"+"---"+testService(1)+"---"+strings.Replace(testService(2), "kind: Service\n", "kind: Service\ntenant: shop\n", 1), "apply", "-f", "-")

	var tokens []string
	var heard strings.Builder
	// as runs a command line as a user whose configuration names a token file.
	as := func(token string, args ...string) (string, int) {
		t.Helper()
		tokens = append(tokens, token)
		dir := t.TempDir()
		config := fmt.Sprintf("server: https://%s\ncaFile: %s/pki/ca.crt\ntokenFile: %s/token\n", p.addr, p.data, dir)
		for name, text := range map[string]string{"token": token, "config.yaml": config} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		out, code := p.shunt("", append([]string{"--config", filepath.Join(dir, "config.yaml")}, args...)...)
		heard.WriteString(out)
		return out, code
	}
	bob := d.idToken("shunt", "bob")
	if out, code := as(bob, "get", "services"); code != exitOK || !strings.Contains(out, "s1") || !strings.Contains(out, "s2") {
		t.Fatalf("bob of the operators: exit code %d: %s", code, out)
	}
	if out, code := as(bob, "access", "create", "--name", "ci", "--role", "viewer"); code != exitOK {
		t.Errorf("bob of the operators makes a token: exit code %d: %s", code, out)
	} else {
		tokens = append(tokens, strings.TrimSpace(out))
		heard.Reset()
	}
	ann := d.idToken("shunt", "ann")
	if out, code := as(ann, "get", "services"); code != exitOK || strings.Contains(out, "s1") || !strings.Contains(out, "s2") {
		t.Errorf("ann of shop: exit code %d: %s", code, out)
	}
	refused := func(who, token, says string, args ...string) {
		t.Helper()
		if out, code := as(token, args...); code != exitFailed || !strings.Contains(out, says) {
			t.Errorf("%s: exit code %d: %s, want %q", who, code, out, says)
		}
	}
	const bad = "bearer token: it is unknown, expired, revoked or wrong"
	refused("ann lists tokens", ann, "may not call ListAccess", "access", "list")
	refused("eve without a group", d.idToken("shunt", "eve"), "oidc eve@example.org has no role here", "get", "services")
	refused("another audience", d.idToken("other", "bob"), bad, "get", "services")
	d.start(-10 * time.Minute)
	late := d.idToken("shunt", "bob")
	refused("expired", late, bad, "get", "services")
	// The manager requests keys at most once a second. Until it has the new ones, the token's key
	// is unknown.
	for tries := 0; !strings.Contains(p.must("", "audit", "--refused", "-o", "json"), "token is expired"); tries++ {
		if tries == 300 {
			t.Fatal("no token has expired for the audit log")
		}
		<-time.After(200 * time.Millisecond)
		refused("expired", late, bad, "get", "services")
	}
	refused("a key that is gone", bob, bad, "get", "services")

	// Refusals are written within seconds.
	audit := ""
	wanted := []string{"signed with no key of the issuer", "may not call ListAccess", "oidc ann@example.org", "oidc eve@example.org has no role here", "audience", "token is expired"}
	lacks := func(want string) bool { return !strings.Contains(audit, want) }
	for tries := 0; slices.ContainsFunc(wanted, lacks); tries++ {
		if tries == 300 {
			t.Fatalf("the audit log lacks one of %q: %s", wanted, audit)
		}
		<-time.After(200 * time.Millisecond)
		audit = p.must("", "audit", "--refused", "-o", "json")
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	<-logged
	p.cmd.Wait()
	for what, text := range map[string]string{"the audit log": audit, "the manager's log": said.String(), "what callers heard": heard.String()} {
		if text == "" {
			t.Errorf("%s is empty", what)
		}
		for _, token := range tokens {
			for _, part := range strings.Split(token, ".")[min(1, strings.Count(token, ".")):] {
				if strings.Contains(text, part) {
					t.Errorf("%s has a part of a token", what)
				}
			}
		}
	}
}

// followed reads a process's log until it ends.
func followed(r io.Reader) (*strings.Builder, <-chan struct{}) {
	var said strings.Builder
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		io.Copy(&said, r)
	}()
	return &said, ended
}
