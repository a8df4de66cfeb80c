package bench

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/sim"
)

const (
	// cheetahVIP is the number of the first engine's VIP; the others follow.
	cheetahVIP = 40
	// enginePorts is the number of source ports of each engine's connections.
	enginePorts = 6_800
	// scalingHealth detects failed servers. No server fails.
	scalingHealth = 10
)

// scaling is a service of each engine over the same servers. Servers and muxes are added and
// removed.
type scaling struct {
	*rig
	o     Options
	sizes cheetahSizes
	// draining is set for the servers that drain, by number. Its length is the number of servers.
	draining []bool
	engines  []*scalingEngine
	muxes    int // that are up
}

// scalingEngine is one way of keeping connections on their servers.
type scalingEngine struct {
	name   string
	number int
	set    func(*apiv1.Endpoint)
	lives  *lives
}

func (e *scalingEngine) service() string { return "cheetah-" + e.name }

func (e *scalingEngine) vip() netip.Addr {
	vip, _ := lab.VIPAddresses(cheetahVIP + e.number)
	return vip
}

// ports returns the source ports of the engine's connections, so that a server never has two
// engines' connections from the same port.
func (e *scalingEngine) ports() portRange {
	first := vipPorts.first + uint16(e.number*enginePorts)
	return portRange{first, first + enginePorts - 1}
}

// step is a change of servers or muxes.
type step struct {
	mark string // for the plot
	do   func(context.Context) error
}

// play emits the broken connections step by step and at the end.
func (s *scaling) play(ctx context.Context, emit func(Row)) error {
	s.muxes = s.sizes.muxes
	s.draining = make([]bool, s.sizes.servers)
	for i, e := range []*scalingEngine{
		{name: cheetahShunt, set: func(ep *apiv1.Endpoint) { ep.Affinity, ep.Scheduler = "cookie", "round-robin" }},
		{name: cheetahFlow, set: func(ep *apiv1.Endpoint) { ep.Affinity = "flow" }},
		{name: cheetahHash, set: func(ep *apiv1.Endpoint) { ep.Affinity = "hash" }},
		{name: cheetahMaglev, set: func(ep *apiv1.Endpoint) { ep.Affinity, ep.RepairWindow = "hash", durationpb.New(0) }},
	} {
		e.number = i
		s.engines = append(s.engines, e)
	}
	if err := s.apply(ctx); err != nil {
		return err
	}
	if err := s.waitKeys(ctx, s.engines[0].vip(), keysSteady); err != nil {
		return err
	}
	for _, e := range s.engines {
		if err := s.waitRoutes(ctx, e.vip(), s.muxes); err != nil {
			return err
		}
		s.o.progressf("cheetah: %d connections of %s", s.sizes.first, e.name)
		var err error
		if e.lives, err = openLives(ctx, s.dialer(e.ports()), netip.AddrPortFrom(e.vip(), lab.EchoPort), s.sizes.first); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		defer e.lives.close()
	}
	pools, modulo := []sim.Pool{s.pool()}, s.engines[len(s.engines)-1].lives.flows()
	s.emit(emit, 0, s.mark(""), nil)
	s.row(emit, cheetahStep, cheetahModulo, 0, s.mark(""), 0, len(modulo))
	for i, step := range s.steps() {
		s.o.progressf("cheetah: step %d, %s", i+1, step.mark)
		broken, err := s.during(ctx, step.do)
		if err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, step.mark, err)
		}
		s.emit(emit, i+1, step.mark, broken)
		if err := s.more(ctx); err != nil {
			return fmt.Errorf("after step %d, %s: %w", i+1, step.mark, err)
		}
		pools = append(pools, s.pool())
		lost := sim.Broken(sim.Modulo, pools, hashesOf(modulo))
		s.row(emit, cheetahStep, cheetahModulo, i+1, step.mark, lost[len(lost)-1], len(modulo))
	}
	for _, e := range s.engines {
		s.row(emit, "scaling", e.name, -1, "", e.lives.lost(), len(e.lives.conns))
	}
	lost := sim.Broken(sim.Modulo, pools, hashesOf(modulo))
	s.row(emit, "scaling", cheetahModulo, -1, "", lost[len(lost)-1], len(modulo))
	return ctx.Err()
}

// steps returns the steps: servers are added one after the other, and a mux is lost meanwhile. Then
// the key of cookies is replaced, and servers are removed.
func (s *scaling) steps() (out []step) {
	come := func(ctx context.Context) error {
		s.draining = append(s.draining, false)
		return s.apply(ctx)
	}
	servers := s.sizes.servers
	mark := func(sign string) string { return strconv.Itoa(servers) + sign }
	for i := range s.sizes.come {
		servers++
		out = append(out, step{mark(""), come})
		if i == s.sizes.come/2 {
			out = append(out, step{mark("−"), func(ctx context.Context) error { return s.lose(ctx, "mux1") }})
		}
	}
	out = append(out, step{mark("+"), func(ctx context.Context) error { return s.revive(ctx, "mux1") }}, step{"key", s.newKey})
	for i := range s.sizes.leave {
		servers--
		// A stride of three selects another host each time.
		out = append(out, step{mark(""), func(ctx context.Context) error {
			s.draining[(3*i+1)%s.sizes.servers] = true
			return s.apply(ctx)
		}})
		if i == s.sizes.leave/2 {
			out = append(out, step{mark("−"), func(ctx context.Context) error { return s.lose(ctx, "mux2") }})
		}
	}
	return append(out, step{mark("+"), func(ctx context.Context) error { return s.revive(ctx, "mux2") }})
}

// mark names the current number of servers.
func (s *scaling) mark(sign string) string { return strconv.Itoa(len(s.pool())) + sign }

// during sends on all connections while do runs, and returns how many of each engine are broken.
func (s *scaling) during(ctx context.Context, do func(context.Context) error) (broken []int, err error) {
	var talks []*lifeTalk
	for _, e := range s.engines {
		talks = append(talks, e.lives.talk())
	}
	err = do(ctx)
	for _, t := range talks {
		broken = append(broken, t.end())
	}
	return broken, err
}

// more opens additional connections of each engine.
func (s *scaling) more(ctx context.Context) error {
	for _, e := range s.engines {
		added, err := openLives(ctx, s.dialer(e.ports()), netip.AddrPortFrom(e.vip(), lab.EchoPort), s.sizes.more)
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		e.lives.add(added)
	}
	return nil
}

// lose stops a mux. The connections use other muxes after the router withdraws its routes.
func (s *scaling) lose(ctx context.Context, mux string) error {
	s.muxes--
	if err := s.lab.LoseMux(ctx, mux); err != nil {
		return err
	}
	return s.routes(ctx)
}

// revive starts a mux again, with an empty flow table.
func (s *scaling) revive(ctx context.Context, mux string) error {
	s.muxes++
	if err := s.lab.ReviveMux(mux); err != nil {
		return err
	}
	if err := s.lab.WaitReady(ctx); err != nil {
		return err
	}
	return s.routes(ctx)
}

// newKey rotates the key of the servers' cookies.
func (s *scaling) newKey(ctx context.Context) error {
	vip := s.engines[0].vip()
	request := &apiv1.RotateKeysRequest{Scopes: []string{vip.String()}, Purpose: cookieKeys}
	if _, err := s.manager.RotateKeys(ctx, connect.NewRequest(request)); err != nil {
		return err
	}
	return s.waitKeys(ctx, vip, keysRest)
}

func (s *scaling) routes(ctx context.Context) error {
	for _, e := range s.engines {
		if err := s.waitRoutes(ctx, e.vip(), s.muxes); err != nil {
			return err
		}
	}
	return nil
}

// serverPlace returns the host and virtual machine of a server. Adjacent numbers are on different
// hosts.
func (s *scaling) serverPlace(number int) (host, vm int) {
	return 1 + number%s.sizes.hosts, 1 + number/s.sizes.hosts
}

func (s *scaling) serverDIP(number int) netip.Addr {
	return lab.VMAddresses(s.serverPlace(number)).V4.Addr()
}

// pool returns the servers that accept connections now.
func (s *scaling) pool() (out sim.Pool) {
	for n, drains := range s.draining {
		if !drains {
			out = append(out, ring.Member{ID: uint16(n), DIP: s.serverDIP(n), Port: lab.EchoPort, Weight: 1})
		}
	}
	return out
}

// apply sets the current servers in every engine's service, and returns when all connected nodes
// have applied it.
func (s *scaling) apply(ctx context.Context) error {
	request := &apiv1.ApplyRequest{}
	for _, e := range s.engines {
		endpoint := &apiv1.Endpoint{
			Protocol: "tcp", Port: strconv.Itoa(lab.EchoPort),
			Health: &apiv1.Health{Tcp: &apiv1.TCPCheck{}, Interval: durationpb.New(time.Second), Timeout: durationpb.New(time.Second), Rise: 1, Fall: scalingHealth},
		}
		e.set(endpoint)
		for n, drains := range s.draining {
			host, _ := s.serverPlace(n)
			endpoint.Backends = append(endpoint.Backends, &apiv1.Backend{
				Dip: []string{s.serverDIP(n).String()}, Port: lab.EchoPort, Host: lab.HostAddresses(host).V4.Addr().String(), Drain: drains,
			})
		}
		service := &apiv1.Service{Name: e.service(), Vip: []string{e.vip().String()}, Endpoints: []*apiv1.Endpoint{endpoint}}
		request.Objects = append(request.Objects, &apiv1.Object{Kind: &apiv1.Object_Service{Service: service}})
	}
	answer, err := s.manager.Apply(ctx, connect.NewRequest(request))
	if err != nil {
		return err
	}
	want := map[string]int{}
	for _, e := range s.engines {
		want[e.service()] = len(s.draining)
	}
	return s.waitMembers(ctx, answer.Msg.GetRevision(), want)
}

// emit makes the rows of a step. A nil broken means that none are broken.
func (s *scaling) emit(emit func(Row), number int, mark string, broken []int) {
	for i, e := range s.engines {
		lost := 0
		if broken != nil {
			lost = broken[i]
		}
		s.row(emit, cheetahStep, e.name, number, mark, lost, len(e.lives.conns))
	}
}

// row makes a row. number is that of a step, or below 0 for none.
func (s *scaling) row(emit func(Row), name, engine string, number int, mark string, broken, of int) {
	r := Row{Case: name, Fields: []Field{{engineField, engine}}}
	if number >= 0 {
		r.Fields = append(r.Fields, Field{"number", number}, Field{"mark", mark}, Field{"servers", len(s.pool())}, Field{"muxes", s.muxes})
	}
	r.Fields = append(r.Fields, Field{brokenField, broken}, Field{brokenPercent, round(100 * float64(broken) / float64(of))}, Field{"connections", of})
	emit(r)
}
