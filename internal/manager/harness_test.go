package manager_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/goccy/go-yaml"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/oidc"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// rig is a manager behind real TLS on a loopback port.
type rig struct {
	t     *testing.T
	store store.Store
	clock clock.Clock
	oidc  *oidc.Verifier // none when nil
	log   *slog.Logger   // the test's when nil
	// cluster and peer are for a store with members.
	cluster store.Cluster
	peer    string
	// keyRest and keyLifetime are options of the manager; 0 is the default.
	keyRest, keyLifetime time.Duration

	name string
	path string
	addr string
	m    *manager.Manager
	// ended receives the error with which the manager ended by itself.
	ended chan error
	stop  func()
	admin shuntv1connect.ManagerClient
}

// newRig starts a manager on a new data directory.
func newRig(t *testing.T, s store.Store) *rig {
	t.Helper()
	return newRigAt(t, s, nil)
}

// newRigAt starts a manager with a clock.
func newRigAt(t *testing.T, s store.Store, c clock.Clock) *rig {
	t.Helper()
	return newRigOf(t, rig{store: s, clock: c})
}

// newRigOf starts a manager with the rig's settings: a store, a clock, a log, a verifier of ID
// tokens.
func newRigOf(t *testing.T, r rig) *rig {
	t.Helper()
	r.t, r.name, r.path = t, "m1", t.TempDir()
	if r.store == nil {
		r.store = store.NewMemory()
	}
	r.start()
	t.Cleanup(func() { r.stop() })
	return &r
}

// start begins a term. A restart uses the last address again.
func (r *rig) start() {
	r.t.Helper()
	listen := r.addr
	if listen == "" {
		listen = loopback()
	}
	l, err := net.Listen("tcp", listen)
	// The last term's connections may hold the address for a moment.
	for tries := 0; errors.Is(err, syscall.EADDRINUSE) && tries < 100; tries++ {
		<-time.After(50 * time.Millisecond)
		l, err = net.Listen("tcp", listen)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.addr = l.Addr().String()
	dir, err := manager.OpenDataDir(r.path)
	if err != nil {
		r.t.Fatal(err)
	}
	r.m, err = manager.Open(r.t.Context(), manager.Options{
		Dir: dir, Store: r.store, Cluster: r.cluster, Peer: r.peer, Name: r.name, Listen: r.addr, Version: "test", Commit: "0123abcd", Log: cmp.Or(r.log, logger(r.t)),
		Clock: r.clock, OIDC: r.oidc, KeyRest: r.keyRest, KeyLifetime: r.keyLifetime,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	r.ended = make(chan error, 1)
	wg.Go(func() { r.ended <- r.m.Serve(ctx, l) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		r.m.Close()
		dir.Close()
	})
	r.admin = shuntv1connect.NewManagerClient(r.httpClient(r.adminTLS()), "https://"+r.addr)
}

// loopback returns an address that only this process uses, with a free port. No outgoing connection
// takes the port between two starts, because those leave from 127.0.0.1.
func loopback() string { return fmt.Sprintf("127.77.%d.%d:0", os.Getpid()>>8&255, os.Getpid()&255) }

func logger(t *testing.T) *slog.Logger {
	if os.Getenv("SHUNT_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// adminTLS reads admin.yaml like the command line.
func (r *rig) adminTLS() *tls.Config {
	r.t.Helper()
	content, err := os.ReadFile(filepath.Join(r.path, "admin.yaml"))
	if err != nil {
		r.t.Fatal(err)
	}
	var c struct{ Server, CA, Cert, Key string }
	if err := yaml.Unmarshal(content, &c); err != nil {
		r.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair([]byte(c.Cert), []byte(c.Key))
	if err != nil {
		r.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(c.CA))
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}
}

func (r *rig) httpClient(cfg *tls.Config) *http.Client {
	tr := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}
	r.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func (r *rig) apply(objs ...lb.Object) *apiv1.ApplyResponse {
	r.t.Helper()
	res, err := r.tryApply(objs...)
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

func (r *rig) tryApply(objs ...lb.Object) (*apiv1.ApplyResponse, error) {
	req := &apiv1.ApplyRequest{}
	for _, o := range objs {
		req.Objects = append(req.Objects, convert.ToObject(o))
	}
	res, err := r.admin.Apply(r.t.Context(), connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

func (r *rig) delete(kind, name string) {
	r.t.Helper()
	_, err := r.admin.Delete(r.t.Context(), connect.NewRequest(&apiv1.DeleteRequest{Objects: []*apiv1.ObjectRef{{Kind: kind, Name: name}}}))
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) token(node, role string) string {
	r.t.Helper()
	res, err := r.admin.CreateToken(r.t.Context(), connect.NewRequest(&apiv1.CreateTokenRequest{Node: node, Role: role}))
	if err != nil {
		r.t.Fatal(err)
	}
	return res.Msg.Token
}

// node is an agent with a handler that records.
type node struct {
	t      *testing.T
	state  string
	clock  clock.Clock
	plans  chan plan.Plan
	cancel context.CancelFunc
	done   chan error
	notify chan struct{}
	// progress, if not nil, is that of the agent.
	progress *agent.Progress
	// refuse makes Apply fail.
	mu     sync.Mutex
	refuse error
	// applied receives plans, under mu. status replaces the reported status.
	applied func(plan.Plan)
	status  func() *apiv1.NodeStatus
}

func (n *node) Apply(ctx context.Context, p plan.Plan) error {
	n.mu.Lock()
	err := n.refuse
	if n.applied != nil {
		n.applied(p)
	}
	n.mu.Unlock()
	select {
	case n.plans <- p:
	case <-ctx.Done():
	}
	return err
}

func (n *node) Status() *apiv1.NodeStatus {
	n.mu.Lock()
	status := n.status
	n.mu.Unlock()
	if status != nil {
		return status()
	}
	return &apiv1.NodeStatus{Routes: []*apiv1.RouteStatus{{Prefix: "203.0.113.10/32", Advertised: true}}}
}

func (n *node) Trace(req *apiv1.TraceRequest) *apiv1.TraceResult {
	return &apiv1.TraceResult{Verdict: "forwarded", Dip: req.GetVip()}
}

func (n *node) Flows(_ context.Context, req *apiv1.FlowsRequest) *apiv1.FlowsResult {
	return &apiv1.FlowsResult{Flows: []*apiv1.FlowStatus{{Vip: req.GetVip(), Port: req.GetPort(), Class: "trusted"}}, Truncated: req.GetLimit() == 1}
}

func (n *node) Health(q *apiv1.HealthQuestion) *apiv1.HealthResult {
	out := &apiv1.HealthResult{}
	for _, m := range q.GetMembers() {
		h := &apiv1.NodeHealth{}
		if m.GetVip() != "203.0.113.11" {
			h.Verdict, h.Words = "healthy", fmt.Sprintf("member %d of %s:%d", m.GetMember(), m.GetVip(), m.GetPort())
		}
		if q.GetShares() {
			h = &apiv1.NodeHealth{Share: new(0.25 * float64(m.GetMember()))}
		}
		out.Members = append(out.Members, h)
	}
	return out
}

// join makes a token and starts an agent with it.
func (r *rig) join(name, role string) *node {
	r.t.Helper()
	return r.joinBy(r.addr, name, role)
}

// joinBy starts an agent with these addresses of managers.
func (r *rig) joinBy(addrs, name, role string) *node {
	r.t.Helper()
	n := &node{t: r.t, state: r.t.TempDir()}
	tokenFile := filepath.Join(n.state, "token")
	if err := os.WriteFile(tokenFile, []byte(r.token(name, role)+"\n"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	n.run(addrs, name, role)
	return n
}

func (n *node) run(addr, name, role string) {
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel, n.done = cancel, make(chan error, 1)
	n.plans, n.notify = make(chan plan.Plan, 1000), make(chan struct{}, 1)
	go func() {
		n.done <- agent.Run(ctx, agent.Options{
			Name: name, Role: role, Manager: addr, TokenFile: filepath.Join(n.state, "token"), StateDir: n.state,
			Version: "test", Notify: n.notify, Log: logger(n.t), Clock: n.clock, Progress: n.progress,
		}, n)
	}()
	n.t.Cleanup(n.stop)
}

func (n *node) stop() {
	n.cancel()
	if err, ok := <-n.done; ok {
		if err != nil {
			n.t.Errorf("agent: %v", err)
		}
		close(n.done)
	}
}

// until reads plans until one fits.
func (n *node) until(what string, fits func(plan.Plan) bool) plan.Plan {
	n.t.Helper()
	for {
		select {
		case p := <-n.plans:
			if fits(p) {
				return p
			}
		case err := <-n.done:
			close(n.done)
			n.t.Fatalf("waiting for %s: agent ended: %v", what, err)
		case <-n.t.Context().Done():
			n.t.Fatalf("waiting for %s", what)
		}
	}
}

// placed waits until the first VIP of a service is on muxes muxes, which it returns, and is leaving
// on leaving muxes.
func (r *rig) placed(service string, muxes, leaving int) []string {
	r.t.Helper()
	for {
		res, err := r.admin.Status(r.t.Context(), connect.NewRequest(&apiv1.StatusRequest{Service: service}))
		if err != nil {
			r.t.Fatal(err)
		}
		if p := res.Msg.GetPlacements()[0]; len(p.GetMuxes()) == muxes && len(p.GetLeaving()) == leaving {
			return p.GetMuxes()
		}
		<-time.After(10 * time.Millisecond)
	}
}

// Objects of the tests.

func network() *lb.Network {
	n := &lb.Network{
		Name:     "main",
		VIPs:     []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:f::/64")},
		Underlay: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")},
	}
	lb.SetDefaults(n)
	return n
}

func muxNode(i int) *lb.Node {
	n := &lb.Node{Name: fmt.Sprintf("mux%d", i), Role: lb.RoleMux, Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.10.0.%d", 10+i))}}
	n.BGP = &lb.BGP{ASN: 65010, Peers: []lb.BGPPeer{{Address: netip.MustParseAddr("10.10.0.1"), ASN: 65000}}}
	lb.SetDefaults(n)
	return n
}

func hostNode(i int) *lb.Node {
	n := &lb.Node{Name: fmt.Sprintf("host%d", i), Role: lb.RoleHost, Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.20.%d.1", i))}}
	lb.SetDefaults(n)
	return n
}

// web returns a service on 203.0.113.10:80 with one backend on each of the hosts.
func web(hosts ...int) *lb.Service {
	s := &lb.Service{Name: "web", VIPs: []netip.Addr{netip.MustParseAddr("203.0.113.10")}, Endpoints: []lb.Endpoint{{Protocol: lb.TCP, Port: 80, RepairWindow: new(time.Duration(0))}}}
	for _, h := range hosts {
		s.Endpoints[0].Backends = append(s.Endpoints[0].Backends, backend(h))
	}
	lb.SetDefaults(s)
	return s
}

func backend(host int) lb.Backend {
	return lb.Backend{
		DIPs: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.20.%d.11", host))}, Port: 8080,
		Host: netip.MustParseAddr(fmt.Sprintf("10.20.%d.1", host)), Weight: 1,
	}
}

func violations(t *testing.T, err error) []string {
	t.Helper()
	ce := new(connect.Error)
	if !asConnect(err, &ce) {
		t.Fatalf("error %v: must be of the API", err)
	}
	var out []string
	for _, d := range ce.Details() {
		msg, err := d.Value()
		if err != nil {
			t.Fatal(err)
		}
		v := msg.(*apiv1.Violation)
		out = append(out, strings.Join([]string{v.Field, v.Value, v.Allowed}, ": "))
	}
	return out
}
