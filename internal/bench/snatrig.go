package bench

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/mux"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/snat"
)

const (
	snatManagers, snatHosts, snatMuxes = 3, 6, 2
	snatServers                        = 2 // of a VIP
)

// snatRig is three managers with stores on disk, and simulated nodes.
type snatRig struct {
	dir      string
	program  string
	note     func(format string, args ...any)
	managers []*exec.Cmd
	api      []string
	scrapes  []string // where managers serve metrics
	ca       *pki.CA
	admin    shuntv1connect.ManagerClient
	hosts    []*snatHost
	normal   []*snatServer
	// few is how many of them, the first, belong to a separate tenant.
	few    int
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
}

type syncStream = connect.BidiStreamForClient[apiv1.NodeReport, apiv1.PlanUpdate]

// snatHost is a host's stream.
type snatHost struct {
	stream  *syncStream
	sending sync.Mutex
	servers map[snat.Holder]*snatServer

	mu sync.Mutex
	// idle are ranges that are returned with the next batch.
	idle []idleRanges
}

type idleRanges struct {
	server *snatServer
	ranges []uint32
}

// snatIdlePace is the interval at which hosts return ranges, as in internal/host.
const snatIdlePace = 50 * time.Millisecond

// snatServer is a DIP of a host.
type snatServer struct {
	host   *snatHost
	holder snat.Holder
	known  chan struct{} // closed when the host may request ranges for it
	once   sync.Once

	mu     sync.Mutex
	asked  time.Time // zero: no request is in flight
	answer func(ranges []uint32, took time.Duration)
}

// withSNAT starts managers and nodes, runs f, and ends and removes everything.
func withSNAT(ctx context.Context, o Options, vips int, f func(context.Context, *snatRig) error) (err error) {
	r := &snatRig{program: o.Program, note: o.notef}
	if r.program == "" {
		if r.program, err = os.Executable(); err != nil {
			return err
		}
	}
	if r.dir, err = os.MkdirTemp("", "shunt-bench-snat"); err != nil {
		return err
	}
	ctx, r.cancel = context.WithCancelCause(ctx)
	defer func() {
		r.cancel(nil)
		for _, m := range r.managers {
			m.Process.Kill()
			m.Wait()
		}
		r.wg.Wait()
		err = errors.Join(err, os.RemoveAll(r.dir))
	}()
	for i := range snatManagers {
		o.progressf("snat: manager %d", i+1)
		if err := r.startManager(ctx, i); err != nil {
			return r.explain(i, err)
		}
	}
	o.progressf("snat: %d services", vips)
	if err := r.objects(ctx, vips); err != nil {
		return err
	}
	if err := r.connectAll(ctx); err != nil {
		return err
	}
	err = f(ctx, r)
	if cause := context.Cause(ctx); err == nil || cause == nil || errors.Is(err, cause) {
		return err
	}
	return errors.Join(err, context.Cause(ctx))
}

func (r *snatRig) explain(i int, err error) error {
	text, _ := os.ReadFile(filepath.Join(r.dir, fmt.Sprintf("log%d", i)))
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return fmt.Errorf("%w; the manager's log ends with:\n%s", err, strings.Join(lines[max(0, len(lines)-5):], "\n"))
}

func (r *snatRig) startManager(ctx context.Context, i int) error {
	ip := fmt.Sprintf("127.79.%d.%d", os.Getpid()>>8&255, os.Getpid()&255)
	api, peer := fmt.Sprintf("%s:%d", ip, 8443+i), fmt.Sprintf("%s:%d", ip, 2380+i)
	data, scrape := filepath.Join(r.dir, fmt.Sprintf("m%d", i+1)), fmt.Sprintf("%s:%d", ip, 9485+i)
	args := []string{"manager", "--data", data, "--metrics", scrape, "--listen", api, "--name", fmt.Sprintf("m%d", i+1), "--peer", peer}
	if i > 0 {
		res, err := r.admin.CreateToken(ctx, connect.NewRequest(&apiv1.CreateTokenRequest{Node: fmt.Sprintf("m%d", i+1), Role: "manager"}))
		if err != nil {
			return err
		}
		file := filepath.Join(r.dir, fmt.Sprintf("token%d", i))
		if err := os.WriteFile(file, []byte(res.Msg.GetToken()+"\n"), 0o600); err != nil {
			return err
		}
		args = append(args, "--join", r.api[0], "--token-file", file)
	}
	log, err := os.Create(filepath.Join(r.dir, fmt.Sprintf("log%d", i)))
	if err != nil {
		return err
	}
	defer log.Close()
	m := exec.Command(r.program, args...)
	m.Stderr, m.SysProcAttr = log, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.Start(); err != nil {
		return err
	}
	r.managers, r.api, r.scrapes = append(r.managers, m), append(r.api, api), append(r.scrapes, scrape)
	ctx, cancel := context.WithTimeout(ctx, nodesWithin)
	defer cancel()
	for {
		err := r.reach(ctx, api)
		if err == nil {
			return nil
		}
		if pause(ctx, pollEvery) != nil {
			return fmt.Errorf("the manager does not answer: %w", err)
		}
	}
}

// reach makes a call to a manager that needs a leader.
func (r *snatRig) reach(ctx context.Context, api string) error {
	if r.ca == nil {
		crt, _ := os.ReadFile(filepath.Join(r.dir, "m1", "pki", "ca.crt"))
		key, _ := os.ReadFile(filepath.Join(r.dir, "m1", "pki", "ca.key"))
		ca, err := pki.ParseCA(crt, key)
		if err != nil {
			return err
		}
		r.ca = ca
	}
	client, err := r.client("bench", "admin")
	if err != nil {
		return err
	}
	admin := shuntv1connect.NewManagerClient(client, "https://"+api)
	if _, err := admin.Version(ctx, connect.NewRequest(&apiv1.VersionRequest{})); err != nil {
		return err
	}
	if r.admin == nil {
		r.admin = admin
	}
	return nil
}

func (r *snatRig) client(name, role string) (*http.Client, error) {
	cert, key, err := r.ca.Client(name, role, 24*time.Hour, time.Now())
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(r.ca.Cert)
	return &http.Client{Transport: &http.Transport{
		ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: pki.ServerName, Certificates: []tls.Certificate{pair}},
	}}, nil
}

func snatHostAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 20, byte(i), 1}) }

// objects stores a service for each VIP, of tenants in turns. Each has the same number of servers
// at the hosts.
func (r *snatRig) objects(ctx context.Context, vips int) error {
	objects := []*apiv1.Object{{Kind: &apiv1.Object_Network{Network: &apiv1.Network{
		Name: "main", Vips: []string{"198.18.0.0/15"}, Underlay: []string{"10.0.0.0/8"},
	}}}}
	for i := range snatHosts {
		objects = append(objects, &apiv1.Object{Kind: &apiv1.Object_Node{Node: &apiv1.Node{Name: fmt.Sprintf("host%d", i), Role: "host", Address: []string{snatHostAddr(i).String()}}}})
	}
	for i := range snatMuxes {
		objects = append(objects, &apiv1.Object{Kind: &apiv1.Object_Node{Node: &apiv1.Node{Name: fmt.Sprintf("mux%d", i), Role: "mux", Address: []string{fmt.Sprintf("10.10.0.%d", 11+i)}}}})
	}
	for range snatHosts {
		r.hosts = append(r.hosts, &snatHost{servers: map[snat.Holder]*snatServer{}})
	}
	for v := range vips {
		// The first two hundred servers, at most a quarter, belong to one tenant, all others to
		// another.
		s := &apiv1.Service{Name: snatServiceName(v), Tenant: "many", Vip: []string{snatVIPAddr(v).String()}}
		if v*snatServers < min(200, vips*snatServers/4) {
			s.Tenant = "few"
			r.few += snatServers
		}
		ep := &apiv1.Endpoint{Protocol: "tcp", Port: "80"}
		for k := range snatServers {
			at := (v + k) % snatHosts
			dip := netip.AddrFrom4([4]byte{10, byte(100 + k), byte(v >> 8), byte(v)})
			ep.Backends = append(ep.Backends, &apiv1.Backend{Dip: []string{dip.String()}, Port: 8080, Host: snatHostAddr(at).String()})
			s.Snat = append(s.Snat, dip.String())
			h := snat.Holder{VIP: snat.VIP{Addr: snatVIPAddr(v)}, DIP: dip}
			server := &snatServer{host: r.hosts[at], holder: h, known: make(chan struct{})}
			r.hosts[at].servers[h] = server
			r.normal = append(r.normal, server)
		}
		s.Endpoints = []*apiv1.Endpoint{ep}
		objects = append(objects, &apiv1.Object{Kind: &apiv1.Object_Service{Service: s}})
	}
	for len(objects) > 0 {
		n := min(200, len(objects))
		if _, err := r.admin.Apply(ctx, connect.NewRequest(&apiv1.ApplyRequest{Objects: objects[:n]})); err != nil {
			return err
		}
		objects = objects[n:]
	}
	return nil
}

// connectAll opens the nodes' streams, to all managers in turns, and waits until all servers may
// request ranges.
func (r *snatRig) connectAll(ctx context.Context) error {
	for i := range snatMuxes {
		if err := r.runMux(ctx, i); err != nil {
			return err
		}
	}
	for i, h := range r.hosts {
		s, err := r.open(ctx, fmt.Sprintf("host%d", i), "host", i)
		if err != nil {
			return err
		}
		h.stream = s
		r.wg.Go(func() { r.fail(h.listen()) })
		r.wg.Go(func() { h.giveBack(ctx) })
	}
	for _, s := range r.normal {
		select {
		case <-s.known:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(nodesWithin):
			return fmt.Errorf("%s of %s may not ask for ports", s.holder.DIP, s.holder.VIP.Addr)
		}
	}
	return pause(ctx, time.Second)
}

// fail ends the measurement.
func (r *snatRig) fail(err error) {
	if err != nil {
		r.cancel(err)
	}
}

func (r *snatRig) open(ctx context.Context, name, role string, at int) (*syncStream, error) {
	client, err := r.client(name, role)
	if err != nil {
		return nil, err
	}
	s := shuntv1connect.NewNodeProtocolClient(client, "https://"+r.api[at%len(r.api)]).Sync(ctx)
	context.AfterFunc(ctx, func() { s.CloseRequest(); client.CloseIdleConnections() })
	return s, s.Send(&apiv1.NodeReport{Hello: &apiv1.Hello{Name: name, Role: role, Opened: time.Now().UnixNano()}})
}

// runMux simulates a mux's handling of leases.
func (r *snatRig) runMux(ctx context.Context, i int) error {
	s, err := r.open(ctx, fmt.Sprintf("mux%d", i), "mux", i+1)
	if err != nil {
		return err
	}
	l := mux.NewLeases(&dataplane.FakeMuxSNAT{}, clock.System{})
	l.Begin()
	r.wg.Go(func() {
		for {
			up, err := s.Receive()
			switch {
			case err != nil:
			case up.GetSnatLeases() != nil:
				var rep apiv1.NodeReport
				if err = l.Hear(up); err == nil && l.Say(&rep) {
					err = s.Send(&rep)
				}
			case up.GetRevision() != 0:
				err = s.Send(obeyed(up))
			}
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				r.fail(fmt.Errorf("mux%d: %w", i, err))
				return
			}
		}
	})
	return nil
}

// obeyed returns the report of a node that has applied a plan.
func obeyed(up *apiv1.PlanUpdate) *apiv1.NodeReport {
	return &apiv1.NodeReport{SyncedRevision: up.GetRevision(), Epoch: up.GetEpoch()}
}

// listen receives the manager's messages to a host.
func (h *snatHost) listen() error {
	for {
		up, err := h.stream.Receive()
		if err == nil && up.GetRevision() != 0 {
			err = h.send(obeyed(up))
		}
		if err != nil {
			return fmt.Errorf("host: %w", err)
		}
		for _, m := range up.GetSnatHolders().GetHolders() {
			holder, err := convert.FromSNATHolder(m)
			if err != nil {
				return err
			}
			if s := h.servers[holder]; s != nil {
				s.once.Do(func() { close(s.known) })
			}
		}
		now := time.Now()
		for _, a := range up.GetSnatAnswers().GetAnswers() {
			g := a.GetGrant()
			if g == nil {
				continue
			}
			holder, err := convert.FromSNATHolder(g.GetHolder())
			if err != nil {
				return err
			}
			if s := h.servers[holder]; s != nil {
				s.heard(g, now)
			}
		}
	}
}

// then sets the handler of responses.
func (s *snatServer) then(answer func(ranges []uint32, took time.Duration)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.asked = answer, time.Time{}
}

func (s *snatServer) heard(g *apiv1.SnatGrant, now time.Time) {
	s.mu.Lock()
	asked, answer := s.asked, s.answer
	s.asked = time.Time{}
	s.mu.Unlock()
	if !asked.IsZero() && answer != nil {
		answer(g.GetRanges(), now.Sub(asked))
	}
}

// ask sends requests of servers of one host, and returns ranges.
func (h *snatHost) ask(servers []*snatServer, back [][]uint32, want uint32) error {
	rep, now := &apiv1.NodeReport{}, time.Now()
	for i, s := range servers {
		m := convert.ToSNATHolder(s.holder)
		if back != nil && len(back[i]) > 0 {
			rep.SnatReturns = append(rep.SnatReturns, &apiv1.SnatReturn{Holder: m, Ranges: back[i]})
		}
		if want > 0 {
			s.mu.Lock()
			if s.asked.IsZero() {
				s.asked = now
			}
			s.mu.Unlock()
			rep.SnatAsks = append(rep.SnatAsks, &apiv1.SnatAsk{Holder: m, Want: want})
		}
	}
	return h.send(rep)
}

func (h *snatHost) send(rep *apiv1.NodeReport) error {
	h.sending.Lock()
	defer h.sending.Unlock()
	return h.stream.Send(rep)
}

// idles queues ranges of a server to be returned with the next batch.
func (h *snatHost) idles(s *snatServer, ranges []uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.idle = append(h.idle, idleRanges{s, ranges})
}

// giveBack sends batches until ctx ends. listen reports a broken stream.
func (h *snatHost) giveBack(ctx context.Context) {
	for pause(ctx, snatIdlePace) == nil {
		h.mu.Lock()
		idle := h.idle
		h.idle = nil
		h.mu.Unlock()
		if len(idle) == 0 {
			continue
		}
		servers, back := make([]*snatServer, len(idle)), make([][]uint32, len(idle))
		for i, r := range idle {
			servers[i], back[i] = r.server, r.ranges
		}
		if h.ask(servers, back, 0) != nil {
			return
		}
	}
}

// snatAnswer is a response with its time of arrival and its latency.
type snatAnswer struct {
	at   time.Time
	took time.Duration
	// ranges is the number of granted ranges.
	ranges int
}

func tookMillis(answers []snatAnswer) []float64 {
	out := make([]float64, len(answers))
	for i, a := range answers {
		out[i] = float64(a.took) / 1e6
	}
	return out
}

// openLoop makes servers send perSecond requests a second, in turns, and returns the responses.
// Servers return the granted ranges soon.
func (r *snatRig) openLoop(ctx context.Context, servers []*snatServer, perSecond int, lasts time.Duration) ([]snatAnswer, error) {
	var mu sync.Mutex
	var out []snatAnswer
	var refused atomic.Int64
	for _, s := range servers {
		s.then(func(ranges []uint32, took time.Duration) {
			if len(ranges) == 0 {
				refused.Add(1)
				return
			}
			mu.Lock()
			out = append(out, snatAnswer{time.Now(), took, len(ranges)})
			mu.Unlock()
			s.host.idles(s, ranges)
		})
	}
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	began, sent := time.Now(), 0
	for time.Since(began) < lasts {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		for due := int(time.Since(began).Seconds() * float64(perSecond)); sent < due; sent++ {
			s := servers[sent%len(servers)]
			if err := s.host.ask([]*snatServer{s}, nil, 1); err != nil {
				return nil, err
			}
		}
	}
	if err := pause(ctx, time.Second); err != nil {
		return nil, err
	}
	mu.Lock()
	defer mu.Unlock()
	if len(out) < sent*9/10 {
		return nil, fmt.Errorf("%d of %d asks were answered with a grant, %d refused", len(out), sent, refused.Load())
	}
	return slices.Clone(out), nil
}

// closedLoop makes every server request the maximum number of ranges per grant as soon as it has a
// response, and returns ranges a second. Hosts answer responses that arrive together in one report.
func (r *snatRig) closedLoop(ctx context.Context, lasts time.Duration) (float64, error) {
	var granted, refused atomic.Int64
	var over atomic.Bool
	type next struct {
		s    *snatServer
		back []uint32
	}
	for _, h := range r.hosts {
		queue := make(chan next, len(h.servers))
		for _, s := range r.normal[r.few:] { // the few keep ranges for the next measurement
			if s.host != h {
				continue
			}
			s.then(func(ranges []uint32, _ time.Duration) {
				granted.Add(int64(len(ranges)))
				if len(ranges) == 0 { // all are in quarantine
					refused.Add(1)
					time.AfterFunc(time.Second, func() { queue <- next{s, nil} })
					return
				}
				queue <- next{s, ranges}
			})
			queue <- next{s, nil}
		}
		r.wg.Go(func() {
			for ctx.Err() == nil {
				var servers []*snatServer
				var back [][]uint32
				want := uint32(snat.DefaultRules.MaxGrant)
				select {
				case n := <-queue:
					servers, back = append(servers, n.s), append(back, n.back)
				case <-ctx.Done():
					return
				}
				for len(queue) > 0 && len(servers) < 256 {
					n := <-queue
					servers, back = append(servers, n.s), append(back, n.back)
				}
				if over.Load() {
					want = 0
				}
				if h.ask(servers, back, want) != nil {
					return
				}
			}
		})
	}
	warm := min(2*time.Second, lasts)
	if err := pause(ctx, warm); err != nil {
		return 0, err
	}
	from, began := granted.Load(), time.Now()
	if err := pause(ctx, lasts); err != nil {
		return 0, err
	}
	perSecond := float64(granted.Load()-from) / time.Since(began).Seconds()
	over.Store(true)
	if n := refused.Load(); n > 0 {
		r.note("snat: %d asks were refused: the VIPs' ranges were at rest", n)
	}
	return perSecond, pause(ctx, 2*time.Second)
}

// abuse makes servers send requests continuously, without waiting for responses, and return granted
// ranges, until stop. seen, if not nil, receives every response.
func (r *snatRig) abuse(servers []*snatServer, seen func(snatAnswer)) (stop func() error) {
	var over atomic.Bool
	var wg sync.WaitGroup
	byHost := map[*snatHost][]*snatServer{}
	for _, s := range servers {
		byHost[s.host] = append(byHost[s.host], s)
		s.then(func(ranges []uint32, took time.Duration) {
			s.host.idles(s, ranges)
			if seen != nil {
				seen(snatAnswer{time.Now(), took, len(ranges)})
			}
		})
	}
	errs := make(chan error, len(byHost))
	for h, of := range byHost {
		wg.Go(func() {
			for i := 0; !over.Load(); i++ {
				from := i * 100 % len(of)
				if err := h.ask(of[from:min(from+100, len(of))], nil, 1); err != nil {
					errs <- err
					return
				}
				// Leave CPU time for the nodes: 20,000 requests a second of all hosts.
				time.Sleep(30 * time.Millisecond)
			}
		})
	}
	return func() error {
		over.Store(true)
		wg.Wait()
		select {
		case err := <-errs:
			return err
		default:
			return nil
		}
	}
}
