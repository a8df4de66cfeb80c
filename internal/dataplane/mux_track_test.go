package dataplane

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// trackedServers are cookieServers with records of their connections.
func trackedServers() []MuxEndpoint {
	servers := cookieServers()
	for i := range servers {
		servers[i].Track = true
	}
	return servers
}

// withMore is a segment with more data: no copy of it.
func withMore(p wire.Packet) wire.Packet {
	tcp := p.Payload.(wire.TCP)
	tcp.Data = []byte("more data behind")
	p.Payload = tcp
	return p
}

// connections lists the records of the endpoint of a packet's VIP.
func (f *muxFixture) connections(p wire.Packet) (out []Flow) {
	f.t.Helper()
	flows, err := f.mux.listFlows(lb.EndpointKey{VIP: p.Dst, Protocol: lb.TCP, Port: 80}, 1<<20)
	must(f.t, err)
	for _, flow := range flows {
		if flow.Tracked {
			out = append(out, flow)
		}
	}
	return out
}

// onlyConnection is the record of the only connection.
func (f *muxFixture) onlyConnection(p wire.Packet) Flow {
	f.t.Helper()
	got := f.connections(p)
	if len(got) != 1 {
		f.t.Fatalf("connections: %+v, want one", got)
	}
	return got[0]
}

// checkIndices: the index of every record is in one place. Returns how many connections have one.
func (f *muxFixture) checkIndices() (used int) {
	f.t.Helper()
	t := f.mux.connections
	places := make([]int, len(t.records))
	for i := 0; i < len(t.heads); i += int(muxLimitLIMIT_DATAGRAM_REGION) {
		stack := t.stacks[uint32(i)/uint32(muxLimitLIMIT_DATAGRAM_REGION)*t.region:]
		for _, index := range stack[:t.heads[i]] {
			places[index]++
		}
	}
	var batches []muxConnectionBatch
	for b, ok := t.take(); ok; b, ok = t.take() {
		batches = append(batches, b)
		for _, index := range b.Indices[:b.Count] {
			places[index]++
		}
	}
	for _, b := range batches {
		must(f.t, t.put(b))
	}
	for _, index := range t.hand {
		places[index]++
	}
	hashes := map[uint64]bool{}
	for _, bucket := range t.buckets {
		for _, word := range bucket.Entries {
			r := t.of(flowWord(word))
			if r == nil {
				continue
			}
			used++
			places[flowWord(word).member()]++
			if r.Hash>>muxFlowBitFLOW_FINGERPRINT_SHIFT != word>>muxFlowBitFLOW_FINGERPRINT_SHIFT || hashes[r.Hash] {
				f.t.Errorf("entry %#x names the record of hash %#x, which has one already: %v", word, r.Hash, hashes[r.Hash])
			}
			hashes[r.Hash] = true
		}
	}
	for index, n := range places {
		if n != 1 {
			f.t.Fatalf("record %d is in %d places", index, n)
		}
	}
	return used
}

// sweep sweeps, and looks at the indices.
func (f *muxFixture) sweep() {
	f.t.Helper()
	_, err := f.mux.Sweep()
	must(f.t, err)
	f.checkIndices()
}

// TestTrackCounts: a record is opened by the first valid cookie, and has what the connection sent from then on.
func TestTrackCounts(t *testing.T) {
	bothFamilies(t, func(t *testing.T, segment func(uint16, uint8, ...byte) wire.Packet) {
		f := newFlowFixture(t, trackedServers()...)
		stamp := usualOptions(stampFor(segment(9, 0), testCookies, 0, 2))
		forged := usualOptions(stampFor(segment(10, 0), testCookies, 0, 2))
		for name, p := range map[string]wire.Packet{
			"SYN": segment(9, wire.SYN, stamp...), "another flow's cookie": segment(9, wire.ACK, forged...), "no cookie": segment(9, wire.ACK),
			"RST of a connection that is not known": segment(9, wire.RST|wire.ACK, stamp...),
		} {
			f.check(p.Frame())
			if got := f.connections(p); len(got) > 0 {
				t.Fatalf("%s: opened %+v", name, got)
			}
		}
		bytes := uint64(0)
		for i := range uint64(5) {
			p := segment(9, wire.ACK, stamp...)
			f.check(p.Frame())
			bytes += uint64(len(p.Frame()) - 14)
			if got := f.onlyConnection(p); got != (Flow{Member: 2, Class: FlowUntrusted, Tracked: true, Packets: i + 1, Bytes: bytes}) {
				t.Fatalf("after %d segments of %d bytes: %+v", i+1, bytes, got)
			}
		}
		f.check(segment(11, wire.ACK, usualOptions(stampFor(segment(11, 0), testCookies, 1, 0))...).Frame())
		if got := f.connections(segment(9, 0)); len(got) != 2 {
			t.Errorf("of two connections: %+v", got)
		}
		if used := f.checkIndices(); used != 2 {
			t.Errorf("%d records are in use, want 2", used)
		}
	})
}

// TestTrackKeyRotation: the record outlives the key that its connection's cookie was made with.
func TestTrackKeyRotation(t *testing.T) {
	f := newFlowFixture(t, trackedServers()...)
	for kid := range uint8(2) {
		f.check(segment4(9, wire.ACK, usualOptions(stampFor(segment4(9, 0), testCookies, kid, 1))...).Frame())
	}
	if got := f.onlyConnection(segment4(9, 0)); got.Packets != 2 {
		t.Errorf("packets: %d, want 2", got.Packets)
	}
}

// TestTrackEnds: RST frees at once; FIN and silence are for the sweep to find.
func TestTrackEnds(t *testing.T) {
	f := newFlowFixture(t, trackedServers()...)
	p := segment4(9, 0)
	send := func(flags uint8) {
		f.check(segment4(9, flags, usualOptions(stampFor(p, testCookies, 0, 1))...).Frame())
	}
	prove := func() {
		send(wire.ACK)
		f.check(withMore(segment4(9, wire.ACK, usualOptions(stampFor(p, testCookies, 0, 1))...)).Frame())
	}
	stays := func(want bool, after string) {
		t.Helper()
		f.sweep()
		if got := len(f.connections(p)) == 1; got != want {
			t.Errorf("after %s there is a record: %v, want %v", after, got, want)
		}
	}
	send(wire.ACK)
	send(wire.RST | wire.ACK)
	if used := f.checkIndices(); used != 0 {
		t.Errorf("RST left %d records", used)
	}
	prove()
	f.pass(299 * time.Second)
	stays(true, "299 s")
	f.pass(10 * time.Second)
	stays(false, "309 s")
	prove()
	f.pass(20 * time.Second)
	send(wire.FIN | wire.ACK)
	if got := f.onlyConnection(p); got.Class != FlowClosing || got.Packets != 3 {
		t.Errorf("after FIN: %+v", got)
	}
	f.pass(55 * time.Second)
	send(wire.ACK) // of the server's FIN
	f.pass(55 * time.Second)
	stays(true, "FIN, and 55 s")
	f.pass(10 * time.Second)
	stays(false, "FIN, and 65 s")
	// Another connection with the same addresses and ports, to another member.
	send(wire.ACK)
	send(wire.ACK)
	f.check(segment4(9, wire.ACK, usualOptions(stampFor(p, testCookies, 0, 2))...).Frame())
	if got := f.onlyConnection(p); got.Member != 2 || got.Packets != 1 {
		t.Errorf("after its successor began: %+v", got)
	}
}

// TestTrackEndpointGoes: with its endpoint, or without Track, a connection has no record.
func TestTrackEndpointGoes(t *testing.T) {
	f := newFlowFixture(t, trackedServers()...)
	open := func() {
		f.check(segment4(9, wire.ACK, usualOptions(stampFor(segment4(9, 0), testCookies, 0, 1))...).Frame())
		f.onlyConnection(segment4(9, 0))
	}
	open()
	f.to(trackedServers()[1])
	if used := f.checkIndices(); used != 0 {
		t.Errorf("%d records are left without their endpoint", used)
	}
	f.to(trackedServers()...)
	open()
	f.to(cookieServers()...)
	f.sweep()
	if used := f.checkIndices(); used != 0 {
		t.Errorf("%d records are left without Track", used)
	}
}

// TestTrackFull: what finds no record is forwarded as ever, and counted.
func TestTrackFull(t *testing.T) {
	f := newFlowFixture(t, trackedServers()...)
	for from := range uint16(2 * testLimits.Connections) {
		p := segment4(from, wire.ACK, usualOptions(stampFor(segment4(from, 0), testCookies, 0, from%3))...)
		before := f.reasonsNow()["track_full"]
		verdict, out := f.run(p.Frame())
		if want := f.model.walk(p.Frame()); verdict != want.verdict || !bytes.Equal(out, want.frame) {
			t.Fatalf("connection %d: verdict %d, %x", from, verdict, out)
		}
		if f.reasonsNow()["track_full"] == before {
			f.run(withMore(p).Frame())
		}
	}
	used, reasons := f.checkIndices(), f.reasonsNow()
	if uint64(used)+reasons["track_full"] != 2*uint64(testLimits.Connections) || used < int(testLimits.Connections)/2 || reasons["track_displaced"] > 0 {
		t.Errorf("%d connections have records, %d were counted, of %d; %d were displaced", used, reasons["track_full"], 2*testLimits.Connections, reasons["track_displaced"])
	}
	f.pass(310 * time.Second)
	f.sweep()
	if used := f.checkIndices(); used != 0 {
		t.Errorf("%d records are left", used)
	}
	f.run(segment4(1, wire.ACK, usualOptions(stampFor(segment4(1, 0), testCookies, 0, 1))...).Frame())
	f.onlyConnection(segment4(1, 0))
}

// TestTrackRefused: a mux without records, and endpoints without cookies.
func TestTrackRefused(t *testing.T) {
	none := testLimits
	none.Connections = 0
	m, err := OpenMux(MuxOptions{Limits: none})
	must(t, err)
	defer m.Close()
	if err := m.Apply(planOf(trackedServers()...)); err == nil {
		t.Error("tracked endpoints were taken by a mux without records")
	}
	must(t, m.Apply(planOf(cookieServers()...)))
	f := newMuxFixture(t)
	e := flowEndpointOf(80, 3)
	e.Track = true
	if err := f.mux.Apply(planOf(e)); err == nil {
		t.Error("a tracked endpoint without cookies was taken")
	}
}

// trackModel is a connection as the oracle has it.
type trackModel struct {
	member  uint16
	packets uint64
	bytes   uint64
	closing bool
	proven  bool
	last    uint64 // tick
}

// onCPU has a function run on one CPU.
func onCPU(t testing.TB, cpu int, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &before))
	one.Set(cpu)
	must(t, unix.SchedSetaffinity(0, &one))
	defer unix.SchedSetaffinity(0, &before) //nolint:errcheck // what it was may be set
	f()
}

// TestTrackRandom compares the records with an oracle's, over random segments of many connections, on all CPUs, sweeps and time.
func TestTrackRandom(t *testing.T) {
	f := newFlowFixture(t, trackedServers()...)
	tick := func() uint64 { return f.model.policy.now >> f.mux.tickShift }
	limit, probation := uint64(f.mux.tables.ticks(300*time.Second)), uint64(f.mux.tables.ticks(10*time.Second))
	ports := f.apart(40)
	rapid.Check(t, func(rt *rapid.T) {
		f.pass(400 * time.Second)
		f.sweep()
		oracle := map[uint16]*trackModel{}
		expire := func() {
			for from, c := range oracle {
				if age := tick() - c.last; age > limit || c.closing && age > f.mux.tables.closingTicks() || !c.proven && age > probation {
					delete(oracle, from)
				}
			}
		}
		for range rapid.IntRange(1, 300).Draw(rt, "steps") {
			from := rapid.SampledFrom(ports).Draw(rt, "from")
			switch rapid.IntRange(0, 20).Draw(rt, "step") {
			case 0:
				f.pass(time.Duration(rapid.IntRange(1, 90).Draw(rt, "seconds")) * time.Second)
				f.sweep()
				expire()
			case 1: // forged
				f.run(segment4(from, wire.RST|wire.ACK, usualOptions(stampFor(segment4(from+1, 0), testCookies, 0, 0))...).Frame())
			default:
				flags := rapid.SampledFrom([]uint8{wire.ACK, wire.ACK, wire.ACK | wire.PSH, wire.FIN | wire.ACK, wire.RST | wire.ACK}).Draw(rt, "flags")
				member := from % 3
				if rapid.IntRange(0, 15).Draw(rt, "other") == 0 {
					member = (from + 1) % 3
				}
				p := segment4(from, flags, usualOptions(stampFor(segment4(from, 0), testCookies, uint8(from%2), member))...)
				if rapid.IntRange(0, 3).Draw(rt, "longer") == 0 {
					p = withMore(p)
				}
				onCPU(t, rapid.IntRange(0, runtime.NumCPU()-1).Draw(rt, "cpu"), func() { f.run(p.Frame()) })
				c, octets := oracle[from], uint64(len(p.Frame())-14)
				if flags&wire.RST != 0 {
					delete(oracle, from)
					continue
				}
				if c == nil || c.member != member {
					c = &trackModel{member: member, proven: c != nil && c.proven}
					oracle[from] = c
				} else {
					c.proven = c.proven || c.last != tick() || c.bytes != c.packets*octets || !c.closing && flags&wire.FIN != 0
				}
				c.packets, c.bytes, c.last = c.packets+1, c.bytes+octets, tick()
				c.closing = c.closing || flags&wire.FIN != 0
			}
		}
		expire()
		f.sweep()
		var want, got []string
		for _, c := range oracle {
			class := FlowTrusted
			if !c.proven {
				class = FlowUntrusted
			} else if c.closing {
				class = FlowClosing
			}
			want = append(want, fmt.Sprint(c.member, class, c.packets, c.bytes, tick()-c.last))
		}
		for _, c := range f.connections(segment4(1, 0)) {
			got = append(got, fmt.Sprint(c.Member, c.Class, c.Packets, c.Bytes, uint64(c.Age/f.mux.tables.tick)))
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			rt.Fatalf("records %v\nwant    %v", got, want)
		}
	})
	if reasons := f.reasonsNow(); reasons["track_full"]+reasons["track_displaced"] > 0 {
		t.Errorf("track_full was counted %d times, track_displaced %d", reasons["track_full"], reasons["track_displaced"])
	}
}

// TestTrackTogether: CPUs open, count and free the same connections at once, and sweeps go on meanwhile: no index is lost, and none is in two places.
func TestTrackTogether(t *testing.T) {
	f := newFlowFixture(t, trackedServers()...)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var wait sync.WaitGroup
	for cpu := range max(2, runtime.NumCPU()) {
		wait.Go(func() {
			onCPU(t, cpu%runtime.NumCPU(), func() {
				r := rand.New(rand.NewPCG(seed, uint64(cpu)))
				for range 6000 {
					from, flags := uint16(r.IntN(2000)), uint8(wire.ACK)
					if r.IntN(2) == 0 {
						flags |= wire.RST
					}
					p := segment4(from, flags, usualOptions(stampFor(segment4(from, 0), testCookies, 0, from%3))...)
					if r.IntN(2) == 0 {
						p = withMore(p)
					}
					f.run(p.Frame())
				}
			})
		})
	}
	done := make(chan struct{})
	go func() { wait.Wait(); close(done) }()
	sweeps := 0
	for ended := false; !ended; sweeps++ {
		select {
		case <-done:
			ended = true
		default:
		}
		_, err := f.mux.Sweep()
		must(t, err)
	}
	t.Logf("%d sweeps, %d records in use", sweeps, f.checkIndices())
	f.pass(310 * time.Second)
	f.sweep()
	if used := f.checkIndices(); used != 0 {
		t.Errorf("%d records are left", used)
	}
}

// TestTrackStacks: the room of CPUs' stacks follows the number of records.
func TestTrackStacks(t *testing.T) {
	for _, c := range []struct{ connections, cpus, region uint32 }{
		{1 << 10, 2, 256}, {1 << 16, 2, 4096}, {1 << 16, 64, 256}, {1 << 21, 2, 1 << 17}, {1 << 21, 64, 4096}, {1 << 10, 64, 256},
	} {
		if got := trackRegion(c.connections, c.cpus); got != c.region {
			t.Errorf("%d records, %d CPUs: stacks of %d, want %d", c.connections, c.cpus, got, c.region)
		}
		n := int(c.connections)
		table := &connectionTable{
			records: make([]muxTrackRecord, n), stacks: make([]uint64, c.cpus*c.region), region: c.region,
			heads: make([]uint64, c.cpus*uint32(muxLimitLIMIT_DATAGRAM_REGION)),
		}
		table.begin()
		free := len(table.hand)
		for i := 0; i < len(table.heads); i += int(muxLimitLIMIT_DATAGRAM_REGION) {
			free += int(table.heads[i])
		}
		if free != n || len(table.hand) < n/2 {
			t.Errorf("%d records, %d CPUs: %d are free, %d of them in hand", n, c.cpus, free, len(table.hand))
		}
	}
}
