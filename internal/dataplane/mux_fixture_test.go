package dataplane

import (
	"bytes"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// Small tables: they are made and emptied for every test.
var testLimits = MuxLimits{
	Endpoints: 128, RingWords: 4096, Members: 1024, Backends: 256, Flows: 512, Sources: 8192, SNAT: 4, QUIC: 8, NAT: 256, Connections: 1024, Probes: 256,
}

var (
	muxVIP4    = netip.MustParseAddr("203.0.113.10")
	muxVIP6    = netip.MustParseAddr("2001:db8:f::10")
	muxClient4 = netip.MustParseAddr("198.51.100.11")
	muxClient6 = netip.MustParseAddr("2001:db8:100::11")
	muxRouter  = [6]byte{2, 0, 0, 0, 0xaa, 1}
	muxSelf    = [6]byte{2, 0, 0, 0, 0xbb, 2}
	sources    = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("fd53:6875:6e74::/64")}
	testKeys   = map[uint8][16]byte{0: {1, 2, 3, 4, 5, 6, 7, 8, 9}, 1: {9, 8, 7, 6}}
)

// ingress is the interface that prog-run says packets came by: the loopback.
const ingress = 1

// testMAC is the address of interface i.
func testMAC(i int) [6]byte { return [6]byte{2, 0, 0, 0, 0xbb, byte(i) + 1} }

// muxFixture is a mux without interface, and the model of what it should do.
type muxFixture struct {
	t     testing.TB
	mux   *Mux
	model *muxModel
}

func newMuxFixture(t testing.TB) *muxFixture { return newMuxFixtureWith(t, MuxOptions{}) }

// newMuxFixtureWith loads with these options, and small tables.
func newMuxFixtureWith(t testing.TB, o MuxOptions) *muxFixture {
	o.Address, o.Limits, o.DeviceMAC = muxSelf, testLimits, func(i int) ([6]byte, error) { return testMAC(i), nil }
	o.testClock = true
	m, err := OpenMux(o)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { m.Close() })
	f := &muxFixture{t, m, &muxModel{alive: map[MemberKey]bool{}, mac: testMAC, ingress: ingress, schedules: newModelSchedules()}}
	j, err := jiffy()
	if err != nil {
		t.Fatal(err)
	}
	f.model.policy.hz = uint64(time.Second / j)
	f.setJiffies(testStart)
	return f
}

// testStart is the time that fixtures begin at, in jiffies.
const testStart = 1 << 32

// setJiffies sets the clock of mux and model.
func (f *muxFixture) setJiffies(now uint64) {
	f.t.Helper()
	if err := f.mux.objects.TestJiffies.Set(now); err != nil {
		f.t.Fatal(err)
	}
	f.model.policy.now = now
}

// apply applies a state to mux and model.
func (f *muxFixture) apply(s MuxState) {
	f.t.Helper()
	f.applyBy(s, f.mux.Apply(s))
}

// change is apply, by what differs from the present state.
func (f *muxFixture) change(s MuxState) {
	f.t.Helper()
	by, some := changeBetween(f.model.state, s)
	if !some || !f.mux.tables.whole {
		f.apply(s)
		return
	}
	f.applyBy(s, f.mux.Change(by))
}

// applyBy lets the model follow the tables.
func (f *muxFixture) applyBy(s MuxState, err error) {
	f.t.Helper()
	must(f.t, err)
	settle(f.t, f.mux) // tests look at what is free
	alive := map[MemberKey]bool{}
	for _, e := range s.Endpoints {
		for _, m := range e.Members {
			key := MemberKey{e.Key, m.ID}
			was, known := f.model.alive[key]
			alive[key] = was || !known && m.Alive
		}
	}
	f.model.schedules.keep(f.model.state, s)
	f.model.state, f.model.alive, f.model.indexed = s, alive, nil
}

func (f *muxFixture) setAlive(flips ...MemberAlive) {
	f.mux.SetAlive(flips)
	for _, a := range flips {
		f.model.alive[MemberKey{a.Endpoint, a.Member}] = a.Alive
	}
}

func (f *muxFixture) setHops(hops map[netip.Addr]NextHop) {
	f.t.Helper()
	if err := f.mux.SetNextHops(hops); err != nil {
		f.t.Fatal(err)
	}
	f.model.hops = maps.Clone(hops)
}

// run gives the program a frame.
func (f *muxFixture) run(frame []byte) (uint32, []byte) {
	f.t.Helper()
	return runProgram(f.t, f.mux.Program(), frame)
}

func runProgram(t testing.TB, p *ebpf.Program, frame []byte) (uint32, []byte) {
	t.Helper()
	opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+1280)}
	verdict, err := p.Run(&opts)
	if err != nil {
		t.Fatalf("run program on %d bytes: %v", len(frame), err)
	}
	return verdict, opts.DataOut
}

// reasonsNow reads the reason counters.
func (f *muxFixture) reasonsNow() map[string]uint64 {
	f.t.Helper()
	c, err := f.mux.Counters()
	if err != nil {
		f.t.Fatal(err)
	}
	return c.Reasons
}

// check runs a frame and compares verdict, bytes and counted reason with the model's.
func (f *muxFixture) check(frame []byte) modelResult {
	f.t.Helper()
	before := f.reasonsNow()
	f.model.noted, f.model.schedules.turned = nil, lb.EndpointKey{}
	want := f.model.walk(frame)
	verdict, out := f.run(frame)
	if verdict != want.verdict || !bytes.Equal(out, want.frame) {
		f.t.Fatalf("frame %x:\ngot  verdict %d, %x\nwant verdict %d, %x (%s)", frame, verdict, out, want.verdict, want.frame, want.reason)
	}
	if what := f.wrongCursor(); what != "" {
		f.t.Fatalf("frame %x: %s", frame, what)
	}
	after := f.reasonsNow()
	for name, n := range after {
		expected := before[name]
		for _, counted := range append(f.model.noted, want.reason) {
			if name == counted {
				expected++
			}
		}
		if n != expected {
			f.t.Fatalf("frame %x: reason %s counted %d times, expected %d; want reason %s", frame, name, n-before[name], expected-before[name], want.reason)
		}
	}
	return want
}

// endpoint makes an endpoint with a ring of 64 slots over members 0…n-1 with these outer destinations.
func endpointOf(vip netip.Addr, protocol lb.Protocol, port uint16, outers ...string) MuxEndpoint {
	e := MuxEndpoint{Key: lb.EndpointKey{VIP: vip, Protocol: protocol, Port: port}, RingCode: 6}
	var members []ring.Member
	for i, o := range outers {
		outer := netip.MustParseAddr(o)
		e.Members = append(e.Members, MuxMember{ID: uint16(i), Outer: outer, MTU: 1500, Choosable: true, Alive: true})
		members = append(members, ring.Member{ID: uint16(i), DIP: outer, Port: 8080, Weight: 1})
	}
	e.Ring = ring.Build(e.RingCode, members)
	return e
}

// hopsTo resolves all members of a state through one muxRouter by interface 1.
func hopsTo(s MuxState) map[netip.Addr]NextHop {
	hops := map[netip.Addr]NextHop{}
	for _, e := range s.Endpoints {
		for _, m := range e.Members {
			hops[m.Outer] = NextHop{MAC: muxRouter, Ifindex: ingress}
		}
	}
	return hops
}

// runOptions is a run with a context.
func runOptions(data []byte, context xdpContext) *ebpf.RunOptions {
	return &ebpf.RunOptions{Data: data, DataOut: make([]byte, len(data)+256), Context: context}
}
