package dataplane

import (
	"testing"
	"time"
)

// newTrackedQUIC is a mux whose endpoint of QUIC has records.
func newTrackedQUIC(t *testing.T) *quicFixture {
	f := newQUICFixture(t, quicKeys)
	f.e.Track = true
	f.to(f.e)
	return f
}

// records are those of the endpoint.
func (f *quicFixture) records() (out []Flow) {
	f.t.Helper()
	flows, err := f.mux.listFlows(f.e.Key, 1000)
	must(f.t, err)
	for _, flow := range flows {
		if flow.Tracked {
			out = append(out, flow)
		}
	}
	return out
}

// TestTrackQUIC: the first datagram whose id names a member opens a record of its addresses and ports, the second proves it.
func TestTrackQUIC(t *testing.T) {
	f := newTrackedQUIC(t)
	octets := func(datagram []byte) uint64 { return 20 + 8 + uint64(len(datagram)) }
	for name, datagram := range map[string][]byte{
		"the client's own id":        longHeader(quicInitial, []byte{0xff, 2, 3, 4, 5, 6, 7, 8}, []byte{1, 2, 3}),
		"an id that nobody has made": shortHeader([]byte{0xff, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}),
		"no QUIC":                    {0xc0},
	} {
		f.send(9, datagram)
		if got := f.records(); len(got) > 0 {
			t.Fatalf("%s opened %+v", name, got)
		}
	}
	first, second := longHeader(quicHandshake, f.id(2), []byte{1, 2, 3}), shortHeader(f.id(2))
	f.send(9, first)
	want := Flow{Member: 2, Class: FlowUntrusted, Tracked: true, Packets: 1, Bytes: octets(first)}
	if got := f.records(); len(got) != 1 || got[0] != want {
		t.Fatalf("after the first: %+v, want %+v", got, want)
	}
	f.send(9, second)
	want.Class, want.Packets, want.Bytes = FlowTrusted, 2, want.Bytes+octets(second)
	if got := f.records(); len(got) != 1 || got[0] != want {
		t.Fatalf("after the second: %+v, want %+v", got, want)
	}
	// A client that moves has another record; the one before ends when it was idle.
	f.pass(200 * time.Second)
	moved := shortHeader(f.id(2))
	f.send(10, moved)
	f.pass(2 * time.Second)
	f.send(10, moved)
	if got := f.records(); len(got) != 2 {
		t.Fatalf("after a move: %+v", got)
	}
	f.pass(110 * time.Second)
	f.sweep()
	want = Flow{Member: 2, Class: FlowTrusted, Tracked: true, Packets: 2, Bytes: 2 * octets(moved)}
	if got := f.records(); len(got) != 1 || got[0].Packets != want.Packets || got[0].Bytes != want.Bytes || got[0].Class != want.Class {
		t.Fatalf("when the first path was idle: %+v, want %+v", got, want)
	}
	f.pass(300 * time.Second)
	f.sweep()
	if used := f.checkIndices(); used != 0 {
		t.Errorf("%d records are left", used)
	}
}

// TestTrackQUICOff: without Track there are no records, and none is left.
func TestTrackQUICOff(t *testing.T) {
	f := newTrackedQUIC(t)
	f.send(9, shortHeader(f.id(1)))
	if used := f.checkIndices(); used != 1 {
		t.Fatalf("%d records", used)
	}
	f.e.Track = false
	f.to(f.e)
	f.sweep()
	f.send(9, shortHeader(f.id(1)))
	if used := f.checkIndices(); used != 0 {
		t.Errorf("%d records without Track", used)
	}
}
