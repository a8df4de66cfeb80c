package dataplane

import (
	"slices"
	"sync"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// settle returns when everything that changes gave up is free.
func settle(t testing.TB, m *Mux) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	must(t, m.awaitLocked(func(*change) bool { return true }))
}

// held does what Apply does, but for the waiting: changes are released when the caller says so, or when they have to be.
type held struct{ waiting []*change }

// stage stages a state beside changes that are not released.
func (h *held) stage(t *muxTables, s MuxState) (*change, error) {
	return h.stageBy(func(crowded bool) (*change, error) { return t.stage(s, crowded) })
}

// stageBy stages by some way beside changes that are not released.
func (h *held) stageBy(stage func(crowded bool) (*change, error)) (*change, error) {
	if slices.ContainsFunc(h.waiting, func(c *change) bool { return c.first }) {
		h.release()
	}
	c, err := stage(len(h.waiting) > 0)
	if err != nil && len(h.waiting) > 0 {
		h.release()
		c, err = stage(false)
	}
	return c, err
}

// published notes a change; it is released with the others when release is true.
func (h *held) published(c *change, release bool) {
	h.waiting = append(h.waiting, c)
	if release {
		h.release()
	}
}

func (h *held) release() {
	for _, c := range h.waiting {
		c.release()
	}
	h.waiting = nil
}

// weighted is an endpoint whose ring is not that of another turn.
func weighted(turn int) MuxState {
	e := endpointOf(muxVIP4, lb.TCP, 80, threeServers...)
	for i := range e.Ring {
		e.Ring[i] = uint16((i + turn) % len(e.Members))
	}
	return MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{e}}
}

// TestApplyWaitsForNoReader: changes of a ring follow each other while readers may be with the ones before, whose words are
// not used again; then all are free.
func TestApplyWaitsForNoReader(t *testing.T) {
	f := newMuxFixture(t)
	// As if the work were under way for ever.
	hold := func(works bool) {
		f.mux.mu.Lock()
		defer f.mux.mu.Unlock()
		f.mux.readers.released, f.mux.readers.works = sync.NewCond(&f.mux.mu), works
	}
	must(t, f.mux.Apply(weighted(0)))
	settle(t, f.mux)
	one := f.mux.tables.rings.used
	hold(true)
	for turn := 1; turn < 4; turn++ {
		must(t, f.mux.Apply(weighted(turn)))
		if used := f.mux.tables.rings.used; used != one*uint32(turn+1) {
			t.Fatalf("after %d changes that nobody released %d ring words are in use, want %d", turn, used, one*uint32(turn+1))
		}
	}
	hold(false)
	settle(t, f.mux)
	if used := f.mux.tables.rings.used; used != one {
		t.Errorf("%d ring words are in use after all readers left, want %d", used, one)
	}
}

// TestApplyWaitsForRoom: a state that fits only where the one before it was waits until no reader is there.
func TestApplyWaitsForRoom(t *testing.T) {
	f := newMuxFixture(t)
	full := func(first uint16) MuxState {
		s := MuxState{RingKeys: testKeys, TunnelSources: sources}
		for i := range uint16(f.mux.tables.mem.endpointCounts.size) - 1 { // the VIP has one of its own
			s.Endpoints = append(s.Endpoints, endpointOf(muxVIP4, lb.TCP, first+i))
		}
		return s
	}
	for i := range uint16(4) {
		must(t, f.mux.Apply(full(1+i%2*10000)))
		must(t, f.mux.Apply(MuxState{}))
	}
	if err := f.mux.Apply(full(1)); err != nil {
		t.Fatal(err)
	}
	// What never fits is refused, however long one waits.
	if err := f.mux.Apply(full(10000)); err == nil {
		t.Error("a state was applied for which there is no room beside the present one")
	}
}
