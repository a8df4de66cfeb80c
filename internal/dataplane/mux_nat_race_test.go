package dataplane

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/shuntlb/shunt/internal/wire"
)

// TestNATRaces: whatever CPUs do at once to the same few flows while members die and sessions are swept, a session has its port, a port is of one
// session, and the room is not exceeded.
func TestNATRaces(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	f.from(NATAddress{natLIP4, 2000, 2063}, NATAddress{natLIP6, 2000, 2063})
	const walkers, rounds = 4, 3000
	var walking sync.WaitGroup
	r := seeded(t)
	for range walkers {
		own := rand.New(rand.NewPCG(r.Uint64(), 0))
		walking.Add(1)
		go func() {
			defer walking.Done()
			for range rounds {
				p := natPacket(own.IntN(2) == 0, own.IntN(4) == 0, uint16(1000+own.IntN(3)), natFlags[own.IntN(len(natFlags))])
				if l4, ok := p.Payload.(wire.TCP); ok {
					l4.Seq = uint32(own.IntN(3))
					p.Payload = l4
				}
				f.mux.Program().Run(&ebpf.RunOptions{Data: p.Frame()}) //nolint:errcheck // what came of it is looked at below
			}
		}()
	}
	done := make(chan struct{})
	go func() { walking.Wait(); close(done) }()
	for sweeping := true; sweeping; {
		select {
		case <-done:
			sweeping = false
		default:
			// Sessions of a member that is dead are begun anew.
			for _, e := range f.model.state.Endpoints {
				f.mux.SetAlive([]MemberAlive{{e.Key, uint16(r.IntN(3)), r.IntN(3) > 0}})
			}
			if r.IntN(50) == 0 {
				_, err := f.mux.Sweep()
				must(t, err)
			}
		}
	}
	f.whole()
}

// TestNATUntrustedWait: whatever CPUs do at the same time to more sessions than there are places, each untrusted session is among those that wait for trust,
// so that another one can displace it.
func TestNATUntrustedWait(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	const walkers, rounds = 4, 6000
	var walking sync.WaitGroup
	r := seeded(t)
	for range walkers {
		own := rand.New(rand.NewPCG(r.Uint64(), 0))
		walking.Go(func() {
			for range rounds {
				p := natPacket(false, false, uint16(1000+own.IntN(2*int(testLimits.NAT))), natFlags[own.IntN(len(natFlags))])
				f.mux.Program().Run(&ebpf.RunOptions{Data: p.Frame()}) //nolint:errcheck // the tables show the result
			}
		})
	}
	walking.Wait()
	if n := f.reasonsNow()["nat_displaced"]; n < rounds/10 {
		t.Errorf("%d sessions were displaced", n)
	}
	f.whole()
	f.eachWaits()
}

// TestNATContendedWaits: a session whose word other CPUs change whenever one tries to end it waits for trust again, and the newcomer is refused.
func TestNATContendedWaits(t *testing.T) {
	// In the loaded program, each attempt to end the oldest session finds another word.
	var contended programPatch
	f := newNATFixtureWith(t, MuxOptions{testSpec: contended.returns("nat_displace_old", -1, func(in asm.Instruction) bool { return in.OpCode.AtomicOp() == asm.CmpXchg })},
		natServers()...)
	if contended.patched == 0 {
		t.Fatal("the program ends no session")
	}
	places := uint16(testLimits.NAT) / 2
	for from := range places {
		f.run(natPacket(false, false, 1000+from, wire.SYN).Frame())
	}
	before := f.reasonsNow()
	f.run(natPacket(false, false, 9000, wire.SYN).Frame())
	after := f.reasonsNow()
	if after["nat_displaced"] != before["nat_displaced"] || after["nat_full"] != before["nat_full"]+1 || f.untrusted() != int(places) {
		t.Errorf("%d sessions are untrusted, nat_displaced %d after %d, nat_full %d after %d", f.untrusted(), after["nat_displaced"], before["nat_displaced"],
			after["nat_full"], before["nat_full"])
	}
	f.eachWaits()
}

// programPatch replaces instructions of a program before it is loaded.
type programPatch struct{ patched int }

// returns makes the instructions of a function that match put a value into R0 instead.
func (c *programPatch) returns(function string, value int32, match func(asm.Instruction) bool) func(*ebpf.CollectionSpec) {
	return func(spec *ebpf.CollectionSpec) {
		for _, p := range spec.Programs {
			within := false
			for i, in := range p.Instructions {
				if symbol := in.Symbol(); symbol != "" {
					within = symbol == function
				}
				if within && match(in) {
					p.Instructions[i] = asm.Mov.Imm(asm.R0, value).WithMetadata(in.Metadata)
					c.patched++
				}
			}
		}
	}
}

// eachWaits checks that each untrusted session is among those that wait for trust, and empties these.
func (f *natFixture) eachWaits() {
	f.t.Helper()
	waiting := map[muxNatName]bool{}
	for {
		var name muxNatName
		if err := f.mux.objects.NatOpenings.LookupAndDelete(nil, &name); err != nil {
			break
		}
		waiting[name] = true
	}
	_, err := f.mux.eachSession(context.Background(), func(k muxNatKey, s *muxNatSession) bool {
		number := uint32(s.Life >> muxNatLifeShiftNAT_NUMBER_SHIFT)
		if !s.has(muxNatFlagNAT_TRUSTED) && !waiting[muxNatName{Client: k, Number: number}] {
			f.t.Errorf("session of %+v: it is untrusted and does not wait for trust (life %#x)", k, s.Life)
		}
		return true
	})
	must(f.t, err)
}

// TestNATEndsOnce: what one CPU is ending no other one touches, and the agent ends what it has read, not what is there since.
func TestNATEndsOnce(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	var talks []*natTalk
	for from := range uint16(4) {
		talks = append(talks, f.talk(false, 1000+from))
		talks[from].says(false, wire.SYN, 0, 0, 0)
	}
	change := func(c *natTalk, how func(*muxNatSession)) muxNatSession {
		t.Helper()
		key := keyOf(c.flow)
		s, ok := f.sessionOf(c.flow)
		if !ok {
			t.Fatalf("%v has no session", c.flow)
		}
		was := s
		how(&s)
		must(t, f.mux.objects.NatSessions.Put(&key, &s))
		return was
	}
	there := func(c *natTalk, want bool) {
		t.Helper()
		if _, ok := f.sessionOf(c.flow); ok != want || f.portThere(natPortOf{c.server, c.lip, 6}) != want {
			t.Errorf("%v: session %v, port %v, expected %v", c.flow, ok, f.portThere(natPortOf{c.server, c.lip, 6}), want)
		}
	}
	ask := func(c *natTalk, s muxNatSession, want uint32) {
		t.Helper()
		got, err := f.mux.objects.NatExpire.Run(&ebpf.RunOptions{Context: &muxNatExpiry{Client: keyOf(c.flow), Life: s.Life, Stamp: s.Stamp}})
		must(t, err)
		if got != want {
			t.Errorf("%v: ended %d, expected %d", c.flow, got, want)
		}
		there(c, want == 0)
	}
	c := talks[0]
	ask(c, change(c, func(s *muxNatSession) { s.Stamp++ }), 0)
	ask(c, change(c, func(s *muxNatSession) { s.Life |= uint64(muxNatFlagNAT_TRUSTED) }), 0)
	ask(c, change(c, func(s *muxNatSession) { s.Life += 1 << muxNatLifeShiftNAT_NUMBER_SHIFT }), 0)
	ask(c, change(c, func(*muxNatSession) {}), 1)

	ending := func(s *muxNatSession) { s.Life |= uint64(muxNatFlagNAT_ENDING) }
	for _, c := range talks[1:] {
		change(c, ending)
	}
	c = talks[1]
	id := f.sessions[c.flow].member
	f.setAlive(MemberAlive{f.sessions[c.flow].endpoint, id, false})
	f.run(c.segment(false, wire.ACK, 1, 1, 0).Frame())
	there(c, true)
	f.setAlive(MemberAlive{f.sessions[c.flow].endpoint, id, true})
	for from := range uint16(testLimits.NAT) {
		f.run(natPacket(false, false, 5000+from, wire.SYN).Frame())
	}
	for _, c := range talks[1:] {
		there(c, true)
	}
}

// whole checks that sessions and ports are each other's.
func (f *natFixture) whole() {
	f.t.Helper()
	sessions := map[muxNatKey]muxNatSession{}
	_, err := f.mux.eachSession(context.Background(), func(k muxNatKey, s *muxNatSession) bool {
		sessions[k] = *s
		return true
	})
	must(f.t, err)
	var (
		port muxNatKey
		name muxNatName
	)
	owned := map[muxNatKey]muxNatKey{}
	it := f.mux.objects.NatPorts.Iterate()
	for it.Next(&port, &name) {
		owned[port] = name.Client
	}
	must(f.t, it.Err())
	for client, s := range sessions {
		if s.has(muxNatFlagNAT_ENDING) {
			f.t.Errorf("session of %+v: is being ended, and nobody does", client)
		}
		if owned[s.port(client.Protocol)] != client {
			f.t.Errorf("session of %+v: its port is of %+v", client, owned[s.port(client.Protocol)])
		}
	}
	for port, client := range owned {
		s, ok := sessions[client]
		if !ok || s.port(client.Protocol) != port {
			if !f.mux.portAlone(port, &muxNatName{Client: client}) {
				f.t.Errorf("port %+v: is looked at as if it had a session", port)
			}
		}
	}
	if len(owned) > int(testLimits.NAT) || f.untrusted() > int(testLimits.NAT)/2 {
		f.t.Errorf("%d ports, %d sessions that are not trusted", len(owned), f.untrusted())
	}
}

// TestNATNumbersOfAnswerStay: a forged SYN that another CPU handles at the same time as the server's answer does not replace the numbers of the connection: no
// reset by the number of the forged SYN ends it.
func TestNATNumbersOfAnswerStay(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	rounds, wrong := 20000, 0
	for round := range rounds {
		c := f.talk(false, 1000)
		key := keyOf(c.flow)
		run := func(p wire.Packet) { f.mux.Program().Run(&ebpf.RunOptions{Data: p.Frame()}) } //nolint:errcheck // the tables show the result
		run(c.segment(false, wire.SYN, 0, 0, 0))
		var s muxNatSession
		must(t, f.mux.objects.NatSessions.Lookup(&key, &s))
		c.lip, c.server = netip.AddrPortFrom(ofHalves(s.LipHi, s.LipLo), s.Lport), netip.AddrPortFrom(ofHalves(s.DipHi, s.DipLo), s.Dport)
		answer := &ebpf.RunOptions{Data: c.segment(true, wire.SYN|wire.ACK, 0, 1, 0).Frame()}
		var forged [4]*ebpf.RunOptions
		for i := range forged {
			// Not twice the same number, which changes nothing.
			forged[i] = &ebpf.RunOptions{Data: c.segment(false, wire.SYN, 5000+i, 0, 0).Frame()}
		}
		var both sync.WaitGroup
		var ready atomic.Int32
		start := func(f func()) {
			both.Go(func() {
				for ready.Add(1); ready.Load() < 2; {
					continue
				}
				f()
			})
		}
		start(func() {
			for _, o := range forged {
				f.mux.Program().Run(o) //nolint:errcheck // the tables show the result
			}
		})
		start(func() {
			for range round % 8 {
				ready.Load()
			}
			f.mux.Program().Run(answer) //nolint:errcheck // the tables show the result
		})
		both.Wait()
		for i := range forged {
			run(c.segment(false, wire.RST, 5001+i, 0, 0))
		}
		must(t, f.mux.objects.NatSessions.Lookup(&key, &s))
		if s.class() != FlowUntrusted {
			wrong++
		}
		must(t, f.mux.objects.NatSessions.Delete(&key))
		port := s.port(key.Protocol)
		must(t, f.mux.objects.NatPorts.Delete(&port))
	}
	if wrong > 0 {
		t.Errorf("in %d of %d rounds a forged reset ended the connection", wrong, rounds)
	}
}
