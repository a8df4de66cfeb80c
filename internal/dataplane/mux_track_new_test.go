package dataplane

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/wire"
)

// shown is a segment of a connection that shows the cookie of a member.
func shown(from uint16, flags uint8, member uint16) wire.Packet {
	return segment4(from, flags, usualOptions(stampFor(segment4(from, 0), testCookies, 0, member))...)
}

// TestTrackProven: a record is on probation until a packet that is no copy of the first names the same member.
func TestTrackProven(t *testing.T) {
	ack := shown(9, wire.ACK, 1)
	for name, c := range map[string]struct {
		wait  time.Duration
		sent  []wire.Packet
		class FlowClass
	}{
		"alone":                         {class: FlowUntrusted},
		"copies of it":                  {sent: []wire.Packet{ack, ack}, class: FlowUntrusted},
		"another length":                {sent: []wire.Packet{withMore(ack)}, class: FlowTrusted},
		"another length behind a copy":  {sent: []wire.Packet{ack, withMore(ack)}, class: FlowTrusted},
		"FIN":                           {sent: []wire.Packet{shown(9, wire.FIN|wire.ACK, 1)}, class: FlowClosing},
		"a copy some ticks later":       {wait: 3 * time.Second, sent: []wire.Packet{ack}, class: FlowTrusted},
		"another member's":              {wait: 3 * time.Second, sent: []wire.Packet{withMore(shown(9, wire.ACK, 2))}, class: FlowUntrusted},
		"another member's, and again":   {sent: []wire.Packet{shown(9, wire.ACK, 2), withMore(shown(9, wire.ACK, 2))}, class: FlowTrusted},
		"first one's behind another's":  {sent: []wire.Packet{shown(9, wire.ACK, 2), ack}, class: FlowUntrusted},
		"FIN, and copies":               {sent: []wire.Packet{shown(9, wire.FIN|wire.ACK, 2), shown(9, wire.FIN|wire.ACK, 2)}, class: FlowUntrusted},
		"a forged one of other length":  {sent: []wire.Packet{withMore(segment4(9, wire.ACK, usualOptions(stampFor(segment4(10, 0), testCookies, 0, 1))...))}, class: FlowUntrusted},
		"one of others, and of its own": {sent: []wire.Packet{shown(10, wire.RST|wire.ACK, 1), withMore(ack)}, class: FlowTrusted},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFlowFixture(t, trackedServers()...)
			f.check(ack.Frame())
			f.pass(c.wait)
			for _, p := range c.sent {
				f.check(p.Frame())
			}
			if got := f.onlyConnection(ack); got.Class != c.class {
				t.Errorf("class %v, want %v: %+v", got.Class, c.class, got)
			}
			f.checkIndices()
		})
	}
}

// TestTrackProbationEnds: on probation a record stays for ten seconds, or as long as untrusted flows if that is shorter; also behind a FIN.
func TestTrackProbationEnds(t *testing.T) {
	for _, c := range []struct {
		untrusted time.Duration
		flags     uint8
		stays     time.Duration
		goes      time.Duration
	}{
		{30 * time.Second, wire.ACK, 8 * time.Second, 13 * time.Second},
		{30 * time.Second, wire.FIN | wire.ACK, 8 * time.Second, 13 * time.Second},
		{4 * time.Second, wire.ACK, 2 * time.Second, 7 * time.Second},
	} {
		servers := trackedServers()
		for i := range servers {
			servers[i].Idle.Untrusted = c.untrusted
		}
		f := newFlowFixture(t, servers...)
		f.check(shown(9, c.flags, 1).Frame())
		f.pass(c.stays)
		f.sweep()
		f.onlyConnection(segment4(9, 0))
		f.pass(c.goes - c.stays)
		if got := f.connections(segment4(9, 0)); len(got) > 0 {
			t.Errorf("%v: listed after %v: %+v", c.untrusted, c.goes, got)
		}
		f.sweep()
		if used := f.checkIndices(); used != 0 {
			t.Errorf("%v: %d records are left after %v", c.untrusted, used, c.goes)
		}
	}
}

// bucketOf is the bucket of the connection from a port; there are no records.
func (f *muxFixture) bucketOf(from uint16) int {
	f.t.Helper()
	f.run(shown(from, wire.ACK, 1).Frame())
	bucket := slices.IndexFunc(f.mux.connections.buckets, func(b muxFlowBucket) bool {
		return slices.ContainsFunc(b.Entries[:], func(w uint64) bool { return w != 0 })
	})
	f.run(shown(from, wire.RST|wire.ACK, 1).Frame())
	return bucket
}

// neighbours are ports whose connections share a bucket.
func (f *muxFixture) neighbours(n int) []uint16 {
	f.t.Helper()
	in := map[int][]uint16{}
	for from := uint16(1); ; from++ {
		bucket := f.bucketOf(from)
		if in[bucket] = append(in[bucket], from); len(in[bucket]) == n {
			return in[bucket]
		}
	}
}

// apart are ports of whose connections no more are in a bucket than may be on probation.
func (f *muxFixture) apart(n int) (ports []uint16) {
	f.t.Helper()
	in := map[int]int{}
	for from := uint16(1); len(ports) < n; from++ {
		if bucket := f.bucketOf(from); in[bucket] < int(muxConnectionLimitLIMIT_CONNECTION_NEW) {
			in[bucket]++
			ports = append(ports, from)
		}
	}
	return ports
}

// listed are the bytes and classes of the records.
func (f *muxFixture) listed() string {
	f.t.Helper()
	var out []string
	for _, c := range f.connections(segment4(1, 0)) {
		out = append(out, fmt.Sprintf("%d:%d", c.Bytes, c.Class))
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}

// sized is a segment of a connection with so many octets of data.
func sized(from uint16, octets int) wire.Packet {
	p := shown(from, wire.ACK, 1)
	tcp := p.Payload.(wire.TCP)
	tcp.Data = make([]byte, octets)
	p.Payload = tcp
	return p
}

// TestTrackDisplaced: of those on probation a bucket has two; the older one gives way, who is proven never does.
func TestTrackDisplaced(t *testing.T) {
	f := newFlowFixture(t, trackedServers()...)
	ports := f.neighbours(10)
	send := func(p wire.Packet, counted string) {
		t.Helper()
		before := f.reasonsNow()
		want := f.model.walk(p.Frame())
		if verdict, out := f.run(p.Frame()); verdict != want.verdict || !bytes.Equal(out, want.frame) || want.reason != "forwarded" {
			t.Fatalf("verdict %d, %x\nwant %d, %x (%s)", verdict, out, want.verdict, want.frame, want.reason)
		}
		after := f.reasonsNow()
		for _, reason := range []string{"track_displaced", "track_full"} {
			if n := after[reason] - before[reason]; n != 0 && reason != counted || reason == counted && n != 1 {
				t.Fatalf("%s was counted %d times, want only %q", reason, n, counted)
			}
		}
		f.checkIndices()
	}
	is := func(want string) {
		t.Helper()
		if got := f.listed(); got != want {
			t.Fatalf("records %s, want %s", got, want)
		}
	}
	const headers = 20 + 20 + 12
	send(sized(ports[0], 100-headers), "")
	f.pass(time.Second)
	send(sized(ports[1], 101-headers), "")
	is("[100:1 101:1]")
	f.pass(time.Second)
	send(sized(ports[2], 102-headers), "track_displaced")
	is("[101:1 102:1]")
	// What is shown a second time makes room for another newcomer.
	send(sized(ports[1], 0), "")
	send(sized(ports[3], 103-headers), "")
	is("[102:1 103:1 153:2]")
	for _, port := range ports[2:9] {
		send(sized(port, 1), "")
		send(sized(port, 2), "")
	}
	// Eight are proven: there is no place for anybody else.
	if got := len(f.connections(segment4(1, 0))); got != 8 {
		t.Fatalf("%d records", got)
	}
	before := f.listed()
	send(sized(ports[9], 0), "track_full")
	send(sized(ports[9], 7), "track_full")
	is(before)
	// Of seven that are proven and one on probation, that one gives way.
	send(shown(ports[1], wire.RST|wire.ACK, 1), "")
	send(sized(ports[9], 0), "")
	send(sized(ports[0], 0), "track_displaced")
	if got := len(f.connections(segment4(1, 0))); got != 8 {
		t.Fatalf("%d records", got)
	}
}

// TestTrackFlood: whatever is forged once has at most half of the records, and takes none from who is proven, nor the chance of those that come.
func TestTrackFlood(t *testing.T) {
	f := newFlowFixture(t, trackedServers()...)
	const proven = 400
	for from := range uint16(proven) {
		f.run(sized(from, 1).Frame())
		f.run(sized(from, 2).Frame())
	}
	had := f.checkIndices()
	for from := range uint16(20000) {
		f.run(sized(10000+from, 1).Frame())
	}
	count := func() (proven, fresh int) {
		for _, c := range f.connections(segment4(1, 0)) {
			if c.Class == FlowUntrusted {
				fresh++
			} else {
				proven++
			}
		}
		return proven, fresh
	}
	was, fresh := count()
	if used := f.checkIndices(); was != had || fresh > int(testLimits.Connections)/2 || fresh < 100 || used != was+fresh {
		t.Errorf("of %d proven records %d are left, beside %d on probation, %d in all", had, was, fresh, used)
	}
	before := f.reasonsNow()["track_full"]
	for from := range uint16(50) {
		f.run(sized(5000+from, 1).Frame())
		f.run(sized(5000+from, 2).Frame())
	}
	now, _ := count()
	if full := f.reasonsNow()["track_full"] - before; now+int(full) < was+50 || now < was+45 {
		t.Errorf("of 50 connections during the flood %d have records, %d were counted", now-was, full)
	}
	f.pass(15 * time.Second)
	f.sweep()
	if left, fresh := count(); left != now || fresh != 0 {
		t.Errorf("after the flood %d of %d proven records are left, beside %d on probation", left, now, fresh)
	}
}
