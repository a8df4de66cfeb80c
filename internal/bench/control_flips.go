package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
)

const (
	flipHosts = 10
	// flipMembers is the number of a service's backends that flip. Another backend, on
	// flipSteadyPort, keeps the VIP advertised.
	flipMembers    = 1000
	flipSteadyPort = 9000
	flipTurns      = 11 // down and up each
	flipLook       = time.Millisecond
)

// flipHost is a host whose check results the measurement sets. It is the agent's handler and its
// verdicts.
type flipHost struct {
	mu       sync.Mutex
	bindings []plan.Binding
	alive    bool
	// whole means that all verdicts are new.
	whole   bool
	changed chan struct{}
}

// Apply implements agent.Handler.
func (h *flipHost) Apply(_ context.Context, p plan.Plan) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bindings = p.Bindings
	h.tellLocked()
	return nil
}

func (h *flipHost) tellLocked() {
	h.whole = true
	notify.Send(h.changed)
}

// flip changes the health of all backends except steady ones.
func (h *flipHost) flip(alive bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.alive = alive
	h.tellLocked()
}

// Changed implements agent.Verdicts.
func (h *flipHost) Changed() <-chan struct{} { return h.changed }

// Take implements agent.Verdicts.
func (h *flipHost) Take(all bool) plan.Verdicts {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := plan.Verdicts{Full: all}
	if !all && !h.whole {
		return v
	}
	h.whole = false
	for i, b := range h.bindings { // ordered by endpoint
		if i == 0 || b.Key != h.bindings[i-1].Key {
			v.Endpoints = append(v.Endpoints, plan.EndpointVerdicts{Key: b.Key})
		}
		e := &v.Endpoints[len(v.Endpoints)-1]
		if h.alive || b.DIPPort == flipSteadyPort {
			e.Alive = append(e.Alive, b.Member)
		} else {
			e.Dead = append(e.Dead, b.Member)
		}
	}
	return v
}

// Status implements agent.Handler.
func (h *flipHost) Status() *apiv1.NodeStatus { return &apiv1.NodeStatus{} }

// Trace implements agent.Handler.
func (h *flipHost) Trace(*apiv1.TraceRequest) *apiv1.TraceResult {
	return &apiv1.TraceResult{Error: "is simulated"}
}

// Flows implements agent.Handler.
func (h *flipHost) Flows(context.Context, *apiv1.FlowsRequest) *apiv1.FlowsResult {
	return &apiv1.FlowsResult{Error: "is simulated"}
}

// Health implements agent.Handler.
func (h *flipHost) Health(*apiv1.HealthQuestion) *apiv1.HealthResult {
	return &apiv1.HealthResult{}
}

// flipHostAddress returns the address of a simulated host. It receives no packets.
func flipHostAddress(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 20, byte(200 + i), 1}) }
func flipHostName(i int) string        { return fmt.Sprintf("bench-flip%d", i) }

// runFlips measures the cases flips-N, each with the services of the previous one and more.
func (r *rig) runFlips(ctx context.Context, o Options, emit func(Row)) (err error) {
	sizes := map[string]int{"flips-2000": 2000, "flips-20000": 20000}
	if !o.wants("flips-2000") && !o.wants("flips-20000") {
		return nil
	}
	hosts, stop, err := r.startFlipHosts(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	services := 0
	for _, name := range []string{"flips-2000", "flips-20000"} {
		if !o.wants(name) {
			continue
		}
		for ; services < sizes[name]/flipMembers; services++ {
			o.progressf("control %s: service %d", name, services+1)
			if err := r.apply(ctx, flipService(services)); err != nil {
				return fmt.Errorf("case %s: %w", name, err)
			}
		}
		row, err := r.timeFlips(ctx, o, name, sizes[name], hosts)
		if err != nil {
			return fmt.Errorf("case %s: %w", name, err)
		}
		emit(row)
	}
	return nil
}

// flipService returns the i-th service, its backends spread over the hosts in turn.
func flipService(i int) *apiv1.Object {
	vip, _ := lab.VIPAddresses(firstFlipVIP + i)
	s := &apiv1.Service{Name: fmt.Sprintf("bench-flips%d", i), Vip: []string{vip.String()}}
	ep := &apiv1.Endpoint{Protocol: "tcp", Port: fmt.Sprint(servicePort), Health: &apiv1.Health{From: lb.FromHost, Interval: durationpb.New(time.Second)}}
	for m := range flipMembers + 1 {
		port := uint32(lab.ServerPort)
		if m == flipMembers {
			port = flipSteadyPort
		}
		dip := netip.AddrFrom4([4]byte{10, 20, byte(100 + m/250), byte(1 + m%250)})
		ep.Backends = append(ep.Backends, &apiv1.Backend{Dip: []string{dip.String()}, Port: port, Host: flipHostAddress(m % flipHosts).String()})
	}
	s.Endpoints = []*apiv1.Endpoint{ep}
	return &apiv1.Object{Kind: &apiv1.Object_Service{Service: s}}
}

// startFlipHosts makes the hosts' objects and starts their agents, each with the addresses of all
// managers.
func (r *rig) startFlipHosts(ctx context.Context) (hosts []*flipHost, stop func() error, err error) {
	access, err := lab.FindAccess(r.lab.Topology.Name)
	if err != nil {
		return nil, nil, err
	}
	var managers []string
	for _, url := range access.Servers {
		managers = append(managers, strings.TrimPrefix(url, "https://"))
	}
	dir, err := os.MkdirTemp("", "shunt-bench-flips")
	if err != nil {
		return nil, nil, err
	}
	running, end := context.WithCancel(ctx)
	var agents sync.WaitGroup
	errs := make([]error, flipHosts)
	stop = func() error {
		end()
		agents.Wait()
		return errors.Join(append(errs, os.RemoveAll(dir))...)
	}
	for i := range flipHosts {
		node := &apiv1.Node{Name: flipHostName(i), Role: string(lb.RoleHost), Address: []string{flipHostAddress(i).String()}}
		if err := r.apply(ctx, &apiv1.Object{Kind: &apiv1.Object_Node{Node: node}}); err != nil {
			return nil, nil, errors.Join(err, stop())
		}
		token, err := r.manager.CreateToken(ctx, connect.NewRequest(&apiv1.CreateTokenRequest{Node: node.Name, Role: node.Role}))
		if err != nil {
			return nil, nil, errors.Join(err, stop())
		}
		file := filepath.Join(dir, node.Name+".token")
		if err := os.WriteFile(file, []byte(token.Msg.GetToken()+"\n"), 0o600); err != nil {
			return nil, nil, errors.Join(err, stop())
		}
		h := &flipHost{alive: true, changed: make(chan struct{}, 1)}
		hosts = append(hosts, h)
		agents.Go(func() {
			errs[i] = agent.Run(running, agent.Options{
				Name: node.Name, Role: node.Role, Manager: strings.Join(managers, ","), TokenFile: file,
				StateDir: filepath.Join(dir, node.Name), Version: "bench", Verdicts: h, Dial: netdev.Dialer(access.Namespace),
			}, h)
		})
	}
	return hosts, stop, nil
}

// timeFlips makes all of count backends fail and recover, repeatedly.
func (r *rig) timeFlips(ctx context.Context, o Options, name string, count int, hosts []*flipHost) (row Row, err error) {
	turns := flipTurns
	if o.Short {
		turns = 1
	}
	words, err := r.aliveWords(ctx, count+count/flipMembers)
	if err != nil {
		return row, err
	}
	defer func() {
		for _, w := range words {
			err = errors.Join(err, w.Close())
		}
	}()
	all := make([]int, len(words))
	for i, w := range words {
		all[i], _ = w.Count()
	}
	var ms, down, up []float64
	for i := range 2 * turns {
		o.progressf("control %s: %d of %d", name, i+1, 2*turns)
		if err := pause(ctx, flipRest); err != nil {
			return row, err
		}
		alive, dead := i%2 == 1, count
		if alive {
			dead = 0
		}
		began := time.Now()
		for _, h := range hosts {
			h.flip(alive)
		}
		for m, w := range words {
			if err := awaitAlive(ctx, w, all[m]-dead); err != nil {
				return row, fmt.Errorf("mux%d: %w", m+1, err)
			}
		}
		took := sinceMS(began, time.Now())
		ms = append(ms, took)
		if alive {
			up = append(up, took)
		} else {
			down = append(down, took)
		}
	}
	return Row{Case: name, Fields: []Field{
		{"p50_ms", round(Percentile(ms, 0.5))}, {"p99_ms", round(Percentile(ms, 0.99))},
		{"down_p50_ms", round(Percentile(down, 0.5))}, {"up_p50_ms", round(Percentile(up, 0.5))}, {"runs", len(ms)},
	}}, nil
}

// flipRest lets the effects of a turn settle. Nodes report once a second.
const flipRest = 500 * time.Millisecond

// aliveWords waits until each mux has this many members in addition to the lab's own, all of them
// alive.
func (r *rig) aliveWords(ctx context.Context, members int) (out []*dataplane.AliveWords, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*stepWithin)
	defer cancel()
	for i := range r.lab.Topology.Muxes {
		for {
			w, err := dataplane.OpenAliveWords(r.lab.Pins(fmt.Sprintf("mux%d", i+1)))
			if err != nil {
				return nil, err
			}
			if alive, have := w.Count(); alive == have && have >= members {
				out = append(out, w)
				break
			} else if err := pause(ctx, 10*pollEvery); err != nil {
				return nil, fmt.Errorf("mux%d has %d members, %d of them alive, want %d and all alive: %w", i+1, have, alive, members, errors.Join(err, w.Close()))
			}
			if err := w.Close(); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func awaitAlive(ctx context.Context, w *dataplane.AliveWords, want int) error {
	ctx, cancel := context.WithTimeout(ctx, stepWithin)
	defer cancel()
	for {
		alive, _ := w.Count()
		if alive == want {
			return nil
		}
		if err := pause(ctx, flipLook); err != nil {
			return fmt.Errorf("%d members are alive, want %d: %w", alive, want, err)
		}
	}
}
