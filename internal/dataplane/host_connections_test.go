package dataplane

import (
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
)

// connections are the established flows of each binding.
func (e *hostEnv) connections() map[lb.EndpointKey]uint64 {
	out := map[lb.EndpointKey]uint64{}
	e.host.Connections(func(b *plan.Binding, n, _ uint64) { out[b.Key] = n })
	return out
}

// counted looks at the whole table for the established flows of each binding that nobody took out yet.
func (e *hostEnv) counted() map[lb.EndpointKey]uint64 {
	byIndex, out := map[uint16]lb.EndpointKey{}, map[lb.EndpointKey]uint64{}
	for _, p := range e.host.state.plans {
		byIndex[uint16(p.index)], out[p.Key] = p.Key, 0
	}
	for b := range e.host.flows.tags {
		for way, tag := range e.host.flows.tags[b].Tags {
			r := &e.host.flows.records[b*flowWays+way]
			if key, known := byIndex[r.Binding]; known && flowTag(tag).class() == FlowTrusted && r.Kind == uint8(hostFlowKindFLOW_INBOUND) {
				out[key]++
			}
		}
	}
	return out
}

// TestHostConnections compares, after each of many random packets, pauses and sweeps, what bindings have with a look at the whole table: TCP and UDP
// by two VIPs that lead to one port of a server, so that flows collide and have aliases, more clients than the table likes, and connections that end
// in every way.
func TestHostConnections(t *testing.T) {
	e := newClockEnv(t)
	second := "203.0.113.77"
	all := []plan.Binding{
		bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.TCP, second, dip4, dip4, true), bind(lb.UDP, vip4, dip4, dip4, true),
	}
	e.apply(all...)
	seed := rand.Uint64()
	if s := os.Getenv("SHUNT_TEST_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		must(t, err)
	}
	t.Logf("SHUNT_TEST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 3))
	const isn = 0x11223344
	most := uint64(0)
	for step := range 3000 {
		port := uint16(1 + random.IntN(40))
		vip := []string{vip4, second}[random.IntN(2)]
		tcp := packet{protocol: lb.TCP, src: client4, dst: vip, sport: port, dport: 80}
		back := packet{protocol: lb.TCP, src: dip4, dst: client4, sport: 8080, dport: port}
		in := func() { e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, tcp.bytes(t))) }
		out := func() { e.run(e.host.objects.HostOut, frame(back.bytes(t))) }
		op := random.IntN(100)
		switch n := op; {
		case n < 20:
			tcp.syn = true
			in()
		case n < 40:
			tcp.ack, tcp.acked, tcp.fin = true, isn+1, random.IntN(5) == 0
			in()
		case n < 43:
			tcp.rst, tcp.seq = true, isn
			in()
		case n < 58:
			back.syn, back.ack = true, true
			out()
		case n < 75:
			back.ack, back.acked, back.fin = true, isn, random.IntN(5) == 0
			out()
		case n < 78:
			back.rst = true
			out()
		case n < 88:
			p := packet{protocol: lb.UDP, src: client4, dst: vip4, sport: port, dport: 53, payload: "q"}
			e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, p.bytes(t)))
			p = packet{protocol: lb.UDP, src: dip4, dst: client4, sport: 5353, dport: port, payload: "a"}
			e.run(e.host.objects.HostOut, frame(p.bytes(t)))
		case n < 90:
			// Past the VIP.
			p := packet{protocol: lb.TCP, src: client4, dst: dip4, sport: port, dport: 8080, syn: true}
			e.run(e.host.objects.HostIn, frame(p.bytes(t)))
		case n < 93:
			e.later(time.Duration(random.IntN(60)) * time.Second)
		case n < 94:
			e.later(lb.DefaultHostIdle.Established / 2)
		case n < 98:
			e.sweepAll()
		case n < 99:
			// A binding leaves and comes back: what it has is known again after a look.
			e.apply(all[1:]...)
			e.apply(all...)
			e.sweepAll()
		default:
			var now uint64
			must(t, e.host.objects.HostTestNow.Get(&now))
			e.open()
			e.quiet()
			e.setClock(time.Duration(now))
			e.apply(all...)
			e.sweepAll()
		}
		got, want := e.connections(), e.counted()
		for key, n := range want {
			if got[key] != n {
				t.Fatalf("step %d, op %d: %s %s has %d connections, the table %d", step, op, key.Protocol, key.VIP, got[key], n)
			}
			most = max(most, n)
		}
	}
	if most < 10 {
		t.Errorf("never more than %d connections: nothing was tested", most)
	}
}

// TestHostConnectionsRace: CPUs that begin and end connections at the same time, by packets of the same flows, lose none of them.
func TestHostConnectionsRace(t *testing.T) {
	e := newHostEnv(t)
	e.flows = 1 << 16 // nothing is evicted
	e.open()
	e.quiet()
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true))
	const flows = 800
	type segment struct {
		program *ebpf.Program
		frame   []byte
	}
	var open, end []segment
	for port := range uint16(flows) {
		in := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: port + 1, dport: 80, ack: true}
		out := packet{protocol: lb.TCP, src: dip4, dst: client4, sport: 8080, dport: port + 1, ack: true}
		open = append(open, segment{e.host.objects.HostIn, tunnel(t, source4, dip4, in.bytes(t))}, segment{e.host.objects.HostOut, frame(out.bytes(t))})
		if port%2 == 0 {
			out.rst = true
			end = append(end, segment{e.host.objects.HostOut, frame(out.bytes(t))})
		}
	}
	for _, phase := range []struct {
		segments []segment
		want     uint64
	}{{open, flows}, {end, flows / 2}} {
		var wg sync.WaitGroup
		errs := make(chan error, 2*runtime.NumCPU())
		for range runtime.NumCPU() {
			wg.Go(func() {
				errs <- netdev.In(e.namespace, func() error {
					for _, s := range phase.segments {
						o := &ebpf.RunOptions{Data: s.frame, DataOut: make([]byte, len(s.frame)+512), Context: skbContext{Ifindex: uint32(e.ifindex)}}
						if _, err := s.program.Run(o); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			must(t, err)
		}
		for key, n := range e.connections() {
			if n != phase.want {
				t.Errorf("%s: %d connections, want %d", key.VIP, n, phase.want)
			}
		}
		for key, n := range e.counted() {
			if n != phase.want {
				t.Errorf("%s: the table has %d, want %d", key.VIP, n, phase.want)
			}
		}
	}
}
