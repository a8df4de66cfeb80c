package dataplane

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// TestNATTriesEveryPort: of as few ports as are tried, the only free one is found, wherever it is, by every flow.
func TestNATTriesEveryPort(t *testing.T) {
	one := natEndpoint(muxVIP4, lb.TCP, 80, "10.20.1.11")
	one.Idle = natIdle
	const n = uint16(muxNatLimitLIMIT_NAT_PROBES)
	for _, size := range []uint16{3, 8, n - 1, n} {
		f := newNATFixture(t, one)
		f.from(NATAddress{natLIP4, 2000, 2000 + size - 1})
		for from := range size {
			f.talk(false, 1000+from).shake()
		}
		if len(f.sessions) != int(size) {
			t.Errorf("%d of %d ports are in use", len(f.sessions), size)
		}
		f.sweep()
	}
}

// TestNATTriesAreDistinct: of any range as many ports are tried as may be.
func TestNATTriesAreDistinct(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	for _, size := range []int{5, 32, 33, 64, 96, 128, 1000, 1024, 64512} {
		f.from(NATAddress{natLIP4, 1024, uint16(1023 + size)})
		for from := range uint16(50) {
			seen := map[uint16]bool{}
			c := f.talk(false, 1000+from)
			for _, lip := range f.tries(serverOf(&f.model.state.Endpoints[0].Members[0], 80), c.flow) {
				seen[lip.Port()] = true
			}
			if len(seen) != min(size, int(muxNatLimitLIMIT_NAT_PROBES)) {
				t.Fatalf("of %d ports %d are tried", size, len(seen))
			}
		}
	}
}

// TestNATPortRests: the port of a connection that is over rests towards its server for a minute, however short sessions may be idle, and though the
// client began another one elsewhere or the endpoint is gone.
func TestNATPortRests(t *testing.T) {
	servers := natServers()
	for i := range servers {
		servers[i].Idle = lb.Idle{Untrusted: lb.MinIdle, Trusted: natIdle.Trusted}
	}
	f := newNATFixture(t, servers...)
	over, moved := f.talk(false, 1000), f.talk(false, 1001)
	for _, c := range []*natTalk{over, moved} {
		c.shake()
		c.play("> R 1 0 0 closing")
	}
	id := f.sessions[moved.flow].member
	for i := range servers {
		for j := range servers[i].Members {
			servers[i].Members[j].Choosable = servers[i].Members[j].ID != id
		}
	}
	f.serve(servers...)
	was := natPortOf{moved.server, moved.lip, 6}
	moved.says(false, wire.SYN, 5000, 0, 0)
	if moved.server == was.server {
		t.Fatal("a server that drains got a connection")
	}
	late := *moved
	late.server, late.lip = was.server, was.lip
	late.says(true, wire.ACK, 1, 1, 0) // nobody's any more
	f.serve(servers[1:]...)
	f.sweep()
	start, rest := f.tick, uint64(f.mux.tables.ticks(natRest))
	f.at(start + rest)
	f.sweep()
	if _, ok := f.sessionOf(over.flow); !ok || !f.portThere(was) {
		t.Errorf("after %d ticks: the session is there: %v, the port: %v", rest, ok, f.portThere(was))
	}
	f.at(start + rest + 1)
	f.sweep()
	if _, ok := f.sessionOf(over.flow); ok || f.portThere(was) {
		t.Errorf("after %d ticks: the session is there: %v, the port: %v", rest+1, ok, f.portThere(was))
	}
}

// portThere says whether a port is in the table.
func (f *natFixture) portThere(p natPortOf) bool {
	key, name := natPortKey(p), muxNatName{}
	return f.mux.objects.NatPorts.Lookup(&key, &name) == nil
}

// natPortKey is the key of a port.
func natPortKey(p natPortOf) muxNatKey {
	key := muxNatKey{Sport: p.server.Port(), Dport: p.lip.Port(), Protocol: p.protocol}
	key.SrcHi, key.SrcLo = storedHalves(p.server.Addr())
	key.DstHi, key.DstLo = storedHalves(p.lip.Addr())
	return key
}

// TestNATPortsAlone: every sweep looks for ports without a session; one goes when a later look finds it as it was, and not while its session is being made.
func TestNATPortsAlone(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	c := f.talk(false, 1000)
	c.shake()
	port := natPortKey(natPortOf{c.server, c.lip, 6})
	rest := uint64(f.mux.tables.ticks(natRest)) + 1
	look := func(after uint64) bool {
		f.at(f.tick + after)
		f.mux.sweeping.Lock()
		defer f.mux.sweeping.Unlock()
		must(t, f.mux.sweepPorts(f.tick))
		var name muxNatName
		err := f.mux.objects.NatPorts.Lookup(&port, &name)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatal(err)
		}
		return err == nil
	}
	key, s := keyOf(c.flow), muxNatSession{}
	must(t, f.mux.objects.NatSessions.Lookup(&key, &s))
	must(t, f.mux.objects.NatSessions.Delete(&key))
	for _, step := range []struct {
		what  string
		do    func()
		after uint64
		there bool
	}{
		{"a first look", func() {}, rest, true},
		{"a look too soon", func() {}, rest - 1, true},
		{"its session is there", func() { must(t, f.mux.objects.NatSessions.Put(&key, &s)) }, 1, true},
		{"it is gone again", func() { must(t, f.mux.objects.NatSessions.Delete(&key)) }, rest, true},
		{"the port is another session's", func() { must(t, f.mux.objects.NatPorts.Put(&port, &muxNatName{Client: key, Number: 7})) }, rest, true},
		{"and stays alone", func() {}, rest, false},
	} {
		step.do()
		if there := look(step.after); there != step.there {
			t.Fatalf("%s: the port is there: %v", step.what, there)
		}
	}
	if len(f.mux.natAlone) != 0 {
		t.Errorf("%d ports are still looked at", len(f.mux.natAlone))
	}
	f.end(c.flow)
	f.compareTables()
}
