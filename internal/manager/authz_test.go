package manager_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// ca reads the manager's CA from its data directory, as only the manager itself can.
func (r *rig) ca() *pki.CA {
	r.t.Helper()
	cert, err := os.ReadFile(filepath.Join(r.path, "pki", "ca.crt"))
	if err != nil {
		r.t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(r.path, "pki", "ca.key"))
	if err != nil {
		r.t.Fatal(err)
	}
	ca, err := pki.ParseCA(cert, key)
	if err != nil {
		r.t.Fatal(err)
	}
	return ca
}

// as returns the TLS configuration of a client with a certificate of ca, or without one if the role
// is "none".
func (r *rig) as(ca *pki.CA, name, role string) *tls.Config {
	r.t.Helper()
	cfg := &tls.Config{RootCAs: r.adminTLS().RootCAs, ServerName: pki.ServerName}
	if role == "none" {
		return cfg
	}
	cert, key, err := ca.Client(name, role, time.Hour, time.Now())
	if err != nil {
		r.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		r.t.Fatal(err)
	}
	cfg.Certificates = []tls.Certificate{pair}
	return cfg
}

func TestRights(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), web(1))
	ctx, ca := t.Context(), r.ca()
	calls := map[string]func(m shuntv1connect.ManagerClient, n shuntv1connect.NodeProtocolClient) error{
		"apply": func(m shuntv1connect.ManagerClient, _ shuntv1connect.NodeProtocolClient) error {
			_, err := m.Apply(ctx, connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{service(func(*apiv1.Service) {})}, DryRun: true}))
			return err
		},
		"delete": func(m shuntv1connect.ManagerClient, _ shuntv1connect.NodeProtocolClient) error {
			_, err := m.Delete(ctx, connect.NewRequest(&apiv1.DeleteRequest{Objects: []*apiv1.ObjectRef{{Kind: "Service", Name: "web"}}, DryRun: true}))
			return err
		},
		"mint": func(m shuntv1connect.ManagerClient, _ shuntv1connect.NodeProtocolClient) error {
			_, err := m.CreateToken(ctx, connect.NewRequest(&apiv1.CreateTokenRequest{Node: "x", Role: "mux"}))
			return err
		},
		"get": func(m shuntv1connect.ManagerClient, _ shuntv1connect.NodeProtocolClient) error {
			_, err := m.Get(ctx, connect.NewRequest(&apiv1.GetRequest{Kind: "Service"}))
			return err
		},
		"status": func(m shuntv1connect.ManagerClient, _ shuntv1connect.NodeProtocolClient) error {
			_, err := m.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{}))
			return err
		},
		"watch": func(m shuntv1connect.ManagerClient, _ shuntv1connect.NodeProtocolClient) error {
			s, err := m.Watch(ctx, connect.NewRequest(&apiv1.WatchRequest{}))
			if err != nil {
				return err
			}
			s.Receive()
			return s.Err()
		},
		"sync as mux1": func(_ shuntv1connect.ManagerClient, n shuntv1connect.NodeProtocolClient) error {
			s := n.Sync(ctx)
			defer s.CloseRequest()
			s.Send(&apiv1.NodeReport{Hello: &apiv1.Hello{Name: "mux1", Role: "mux"}})
			_, err := s.Receive()
			return err
		},
		"join as mux1 without a token": func(_ shuntv1connect.ManagerClient, n shuntv1connect.NodeProtocolClient) error {
			_, err := n.Join(ctx, connect.NewRequest(&apiv1.JoinRequest{Name: "mux1", Role: "mux", Csr: csr(t)}))
			return err
		},
	}
	everything := "apply delete mint get status watch"
	for who, c := range map[string]struct {
		cfg     *tls.Config
		may     string
		refusal connect.Code
	}{
		"admin":          {r.as(ca, "admin", "admin"), everything, connect.CodePermissionDenied},
		"viewer":         {r.as(ca, "eve", "viewer"), "get status watch", connect.CodePermissionDenied},
		"mux1":           {r.as(ca, "mux1", "mux"), "sync as mux1, join as mux1 without a token", connect.CodePermissionDenied},
		"mux2":           {r.as(ca, "mux2", "mux"), "", connect.CodePermissionDenied},
		"host mux1":      {r.as(ca, "mux1", "host"), "", connect.CodePermissionDenied},
		"no role":        {r.as(ca, "admin", ""), "", connect.CodePermissionDenied},
		"a strange role": {r.as(ca, "admin", "root"), "", connect.CodePermissionDenied},
		"nobody":         {r.as(ca, "", "none"), "", connect.CodeUnauthenticated},
	} {
		hc := r.httpClient(c.cfg)
		m := shuntv1connect.NewManagerClient(hc, "https://"+r.addr)
		n := shuntv1connect.NewNodeProtocolClient(hc, "https://"+r.addr)
		for what, call := range calls {
			err := call(m, n)
			if may := strings.Contains(c.may, what); may && err != nil || !may && connect.CodeOf(err) != c.refusal {
				t.Errorf("%s, %s: %v, may: %v", who, what, err, may)
			}
		}
	}
}

func TestForeignCertificatesAreRefused(t *testing.T) {
	r := newRig(t, store.NewMemory())
	other, err := pki.NewCA("other", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	foreign := r.as(other, "admin", "admin")
	// The client sends it although the manager requests a certificate of other CAs.
	foreign.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &foreign.Certificates[0], nil }
	m := shuntv1connect.NewManagerClient(r.httpClient(foreign), "https://"+r.addr)
	if _, err := m.Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: "Node"})); err == nil {
		t.Error("a certificate of another CA was accepted")
	}
	cert, key, err := r.ca().Client("ann", "admin", time.Minute, time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	late := &tls.Config{RootCAs: r.ca().Pool(), ServerName: pki.ServerName, Certificates: []tls.Certificate{pair}}
	if err := get(t, shuntv1connect.NewManagerClient(r.httpClient(late), "https://"+r.addr)); err == nil {
		t.Error("a certificate that has expired was accepted")
	}
	// The client may try more than once, so the number of entries does not prove that all are
	// there.
	r.refusalsUntil(func(all []*apiv1.AuditEntry) bool {
		found := map[string]bool{}
		for _, e := range all {
			found[e.GetRefused()] = e.GetCall() == "TLS" && e.GetWho() == "nobody" && strings.HasPrefix(e.GetFrom(), "127.")
		}
		return found[`certificate of "admin": it is not of the cluster's CA`] && found[`certificate of "ann": it has expired, or is not valid yet`]
	})
}

func csr(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestTokens(t *testing.T) {
	r := newRig(t, store.NewMemory())
	n := shuntv1connect.NewNodeProtocolClient(r.httpClient(r.as(nil, "", "none")), "https://"+r.addr)
	good := r.token("mux1", "mux")
	short, err := r.admin.CreateToken(t.Context(), connect.NewRequest(&apiv1.CreateTokenRequest{Node: "mux1", Role: "mux", Ttl: durationpb.New(time.Nanosecond)}))
	if err != nil {
		t.Fatal(err)
	}
	parts, same := strings.Split(good, "."), csr(t)
	forged := strings.Join(append(parts[:3:3], strings.Repeat("A", len(parts[3]))), ".")
	for name, c := range map[string]struct {
		token, node, role string
		csr               []byte
		want              connect.Code // 0: accepted
	}{
		"good":            {good, "mux1", "mux", same, 0},
		"good again":      {good, "mux1", "mux", same, 0},
		"another node":    {good, "mux2", "mux", csr(t), connect.CodePermissionDenied},
		"another role":    {good, "mux1", "host", csr(t), connect.CodePermissionDenied},
		"role admin":      {good, "mux1", "admin", csr(t), connect.CodeInvalidArgument},
		"expired":         {short.Msg.Token, "mux1", "mux", csr(t), connect.CodePermissionDenied},
		"forged secret":   {forged, "mux1", "mux", csr(t), connect.CodePermissionDenied},
		"no token":        {"", "mux1", "mux", csr(t), connect.CodeUnauthenticated},
		"not a token":     {"shunt1.x", "mux1", "mux", csr(t), connect.CodePermissionDenied},
		"no request":      {good, "mux1", "mux", nil, connect.CodeInvalidArgument},
		"broken request":  {good, "mux1", "mux", csr(t)[:50], connect.CodeInvalidArgument},
		"name with slash": {good, "a/b", "mux", csr(t), connect.CodeInvalidArgument},
	} {
		res, err := n.Join(t.Context(), connect.NewRequest(&apiv1.JoinRequest{Token: c.token, Name: c.node, Role: c.role, Csr: c.csr}))
		if c.want == 0 && (err != nil || len(res.Msg.Certificate) == 0) || c.want != 0 && connect.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestDeletedNodeIsOut(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), web(1))
	mux := r.join("mux1", "mux")
	mux.until("its plan", func(p plan.Plan) bool { return len(p.Endpoints) == 1 })
	r.delete("Node", "mux1")
	mux.until("an empty plan", func(p plan.Plan) bool { return p.Node.Name == "" && len(p.Endpoints) == 0 && len(p.RingKeys) == 0 })
	r.statusGone("mux1")
	r.apply(muxNode(1))
	r.status("mux1", func(st *apiv1.NodeStatus) bool { return !st.Connected })
	if err := os.WriteFile(filepath.Join(mux.state, "token"), []byte(r.token("mux1", "mux")), 0o600); err != nil {
		t.Fatal(err)
	}
	mux.until("the plan after joining again", func(p plan.Plan) bool { return len(p.Endpoints) == 1 })
}

func TestNodeThatWasAwayWhenDeletedGetsAnEmptyPlan(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), web(1))
	mux := r.join("mux1", "mux")
	mux.until("its plan", func(p plan.Plan) bool { return len(p.Endpoints) == 1 })
	mux.stop()
	r.delete("Node", "mux1")
	mux.run(r.addr, "mux1", "mux")
	mux.until("the stored plan", func(p plan.Plan) bool { return len(p.Endpoints) == 1 })
	mux.until("an empty plan", func(p plan.Plan) bool { return p.Node.Name == "" && len(p.Endpoints) == 0 && len(p.RingKeys) == 0 })
}

func TestCertificateOfAnotherRoleGivesNoPlan(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), web(1))
	s := r.raw("mux1", "host")
	if up := receive(t, s); !up.Snapshot || keys(up) != "" {
		t.Errorf("a host's certificate got %v of a mux's plan", up)
	}
	if _, err := r.admin.CreateToken(t.Context(), connect.NewRequest(&apiv1.CreateTokenRequest{Node: "mux1", Role: "host"})); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("a host's token for a mux: %v", err)
	}
}

// statusGone waits until the node has no status.
func (r *rig) statusGone(node string) {
	r.t.Helper()
	for tries := 0; ; tries++ {
		_, err := r.admin.Status(r.t.Context(), connect.NewRequest(&apiv1.StatusRequest{Node: node}))
		if connect.CodeOf(err) == connect.CodeNotFound {
			return
		}
		if err != nil || tries == maxTries {
			r.t.Fatalf("status of %s is still there, error %v", node, err)
		}
		<-time.After(100 * time.Microsecond)
	}
}

func TestSecretsAreSealed(t *testing.T) {
	s := store.NewMemory()
	r := newRig(t, s)
	r.apply(network(), muxNode(1))
	mux := r.join("mux1", "mux")
	p := mux.until("the ring key", func(p plan.Plan) bool { return len(p.RingKeys) == 1 })
	tok := r.token("mux1", "mux")
	secret := tok[strings.LastIndex(tok, ".")+1:]
	snap, err := s.List(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range snap.KVs {
		if strings.Contains(string(kv.Value), string(p.RingKeys[0].Key[:])) || strings.Contains(string(kv.Value), secret) {
			t.Errorf("%s holds a secret in clear", kv.Key)
		}
	}
	for _, file := range []string{"admin.yaml", "pki/ca.key", "pki/store.key"} {
		if info, err := os.Stat(filepath.Join(r.path, file)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v, want mode 0600", file, info.Mode(), err)
		}
	}
}
