package manager_test

import (
	"crypto/rand"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
	"github.com/shuntlb/shunt/internal/token"
)

// requestOf makes a certificate request of a new key.
func requestOf(t *testing.T) []byte {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	out, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// joinWith requests a certificate for mux1 with a token.
func (r *rig) joinWith(tok string, request []byte) error { return r.joinAs("mux1", tok, request) }

// joinAs requests a certificate for a mux with a token.
func (r *rig) joinAs(name, tok string, request []byte) error {
	parsed, err := token.Parse(tok)
	if err != nil {
		r.t.Fatal(err)
	}
	c := shuntv1connect.NewNodeProtocolClient(r.httpClient(pki.JoinTLS(parsed.CA)), "https://"+r.addr)
	_, err = c.Join(r.t.Context(), connect.NewRequest(&apiv1.JoinRequest{Token: tok, Name: name, Role: "mux", Csr: request}))
	return err
}

func (r *rig) tokenFor(node, role string, uses uint32) string {
	r.t.Helper()
	res, err := r.admin.CreateToken(r.t.Context(), connect.NewRequest(&apiv1.CreateTokenRequest{Node: node, Role: role, Uses: uses}))
	if err != nil {
		r.t.Fatal(err)
	}
	return res.Msg.Token
}

// TestJoinTokenIsForOneKey: by default one key joins with a token, any number of times. The audit
// log has the cause of a refusal.
func TestJoinTokenIsForOneKey(t *testing.T) {
	for _, c := range []struct {
		uses uint32
		keys int
	}{{0, 1}, {1, 1}, {3, 3}} {
		r := newRig(t, store.NewMemory())
		tok := r.tokenFor("mux1", "mux", c.uses)
		for i := range c.keys {
			request := requestOf(t)
			for attempt := range 2 {
				if err := r.joinWith(tok, request); err != nil {
					t.Fatalf("%d uses: key %d, attempt %d: %v", c.uses, i, attempt, err)
				}
			}
		}
		err := r.joinWith(tok, requestOf(t))
		if connect.CodeOf(err) != connect.CodePermissionDenied || strings.Contains(err.Error(), "used up") {
			t.Errorf("%d uses: one key more: %v", c.uses, err)
		}
	}
	r := newRig(t, store.NewMemory())
	_, err := r.admin.CreateToken(t.Context(), connect.NewRequest(&apiv1.CreateTokenRequest{Node: "mux1", Role: "mux", Uses: 101}))
	if got := violations(t, err); len(got) != 1 || !strings.Contains(got[0], "uses: 101: must be 1 to 100") {
		t.Errorf("101 uses: %q", got)
	}
}

// TestManagerTokenIsForOneKey: the second holder of a copied token does not get the key of the CA.
func TestManagerTokenIsForOneKey(t *testing.T) {
	r := newRig(t, store.NewMemory())
	tok, err := token.Parse(r.token("m2", "manager"))
	if err != nil {
		t.Fatal(err)
	}
	join := func(path string) error {
		dir, err := manager.OpenDataDir(path)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		_, err = manager.Join(t.Context(), manager.Options{Dir: dir, Name: "m2", Listen: "127.0.0.1:1"}, tok, r.addr)
		return err
	}
	first, thief := t.TempDir(), t.TempDir()
	for range 2 {
		if err := join(first); err != nil {
			t.Fatal(err)
		}
	}
	if err := join(thief); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("the second holder: %v", err)
	}
	if _, err := os.Stat(filepath.Join(thief, "pki", "ca.key")); err == nil {
		t.Error("the second holder has the key of the CA")
	}
}

// TestAgentThatLostTheAnswerJoins: an agent that ends before it has its certificate joins with the
// same key.
func TestAgentThatLostTheAnswerJoins(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), muxNode(1))
	tok, state := r.token("mux1", "mux"), t.TempDir()
	// The answer is lost: the manager has signed for the key that the agent keeps.
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	content, err := pki.KeyPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "join.key"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.joinWith(tok, request); err != nil {
		t.Fatal(err)
	}
	if err := r.joinWith(tok, requestOf(t)); err == nil {
		t.Error("another key joined with the same token")
	}
	if err := os.WriteFile(filepath.Join(state, "token"), []byte(tok), 0o600); err != nil {
		t.Fatal(err)
	}
	done := &node{t: t, state: state}
	done.run(r.addr, "mux1", "mux")
	done.until("a plan", func(plan.Plan) bool { return true })
	done.stop()
	if _, err := os.Stat(filepath.Join(state, "join.key")); err == nil {
		t.Error("join.key was left")
	}
}

func (r *rig) revokeNamed(kind, id string) error {
	_, err := r.admin.RevokeAccess(r.t.Context(), connect.NewRequest(&apiv1.RevokeAccessRequest{Kind: kind, Id: id}))
	return err
}

// TestRevokedNode loses its stream immediately, cannot renew, and joins again with a new token. Its
// object stays.
func TestRevokedNode(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1))
	unused := r.token("mux1", "mux")
	certificate := r.as(r.ca(), "mux1", "mux")
	s := r.raw("mux1", "mux")
	receive(t, s)
	if err := r.revokeNamed("node", "mux1"); err != nil {
		t.Fatal(err)
	}
	for {
		up, err := s.Receive()
		if connect.CodeOf(err) == connect.CodePermissionDenied {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(up.Upsert) > 0 {
			t.Fatalf("a revoked node got %s", keys(up))
		}
	}
	c := shuntv1connect.NewNodeProtocolClient(r.httpClient(certificate), "https://"+r.addr)
	_, err := c.Join(t.Context(), connect.NewRequest(&apiv1.JoinRequest{Name: "mux1", Role: "mux", Csr: requestOf(t)}))
	if connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("renewal: %v", err)
	}
	if err := r.joinWith(unused, requestOf(t)); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("a token from before: %v", err)
	}
	n := r.join("mux1", "mux")
	n.until("a plan", func(p plan.Plan) bool { return p.Node.Name == "mux1" })
	n.stop()
	// A node that joined before its Node object existed.
	early := r.token("mux2", "mux")
	if err := r.joinAs("mux2", early, requestOf(t)); err != nil {
		t.Fatal(err)
	}
	if err := r.revokeNamed("node", "mux2"); err != nil {
		t.Errorf("revoke a node without an object: %v", err)
	}
	r.apply(muxNode(2))
	if err := r.joinAs("mux2", early, requestOf(t)); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("its token afterwards: %v", err)
	}
	for kind, want := range map[string]connect.Code{"node": connect.CodeNotFound, "token": connect.CodeNotFound, "star": connect.CodeInvalidArgument} {
		if err := r.revokeNamed(kind, "nobody"); connect.CodeOf(err) != want {
			t.Errorf("revoke %s nobody: %v, want %v", kind, err, want)
		}
	}
}

// TestRevokedManager: its certificate authenticates no call, no matter for which caller. A key that
// is admitted later does.
func TestRevokedManager(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network())
	stolen := r.as(r.ca(), "m9", "manager")
	ask := func() error {
		c := shuntv1connect.NewManagerClient(r.httpClient(stolen), "https://"+r.addr)
		req := connect.NewRequest(&apiv1.MembersRequest{})
		_, err := c.Members(t.Context(), req)
		return err
	}
	relay := shuntv1connect.NewMemberProtocolClient(r.httpClient(r.as(r.ca(), "m9", "manager")), "https://"+r.addr).Relay(t.Context())
	if err := relay.Send(&apiv1.RelayUp{Manager: "m9"}); err != nil {
		t.Fatal(err)
	}
	if _, err := relay.Receive(); err != nil {
		t.Fatal(err)
	}
	before := ask()
	if connect.CodeOf(before) == connect.CodeUnauthenticated {
		t.Fatalf("before: %v", before)
	}
	if err := r.revokeNamed("manager", "m9"); err != nil {
		t.Fatal(err)
	}
	if err := ask(); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("afterwards: %v", err)
	}
	for {
		if _, err := relay.Receive(); err != nil {
			if connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), "the certificate was revoked") {
				t.Errorf("its stream ended with %v", err)
			}
			break
		}
	}
	dir, err := manager.OpenDataDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	tok, err := token.Parse(r.token("m9", "manager"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := manager.Join(t.Context(), manager.Options{Dir: dir, Name: "m9", Listen: "127.0.0.1:1"}, tok, r.addr); err != nil {
		t.Fatal(err)
	}
	if err := ask(); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("the stolen one after another key was admitted: %v", err)
	}
}
