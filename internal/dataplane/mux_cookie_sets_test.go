package dataplane

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// TestCookieStatesAreRefused: each names what is wrong.
func TestCookieStatesAreRefused(t *testing.T) {
	f := newFlowFixture(t)
	for want, change := range map[string]func(e *MuxEndpoint){
		"affinity cookie: no key that counts":                        func(e *MuxEndpoint) { e.Cookie.Live = [2]bool{} },
		"affinity cookie: no key that counts ":                       func(e *MuxEndpoint) { e.Cookie = nil },
		"cookie keys: must have affinity cookie":                     func(e *MuxEndpoint) { e.Affinity = AffinityFlow },
		"cookie keys: with protocol udp: must be tcp":                func(e *MuxEndpoint) { e.Key.Protocol = lb.UDP },
		"cookie keys: not with fragments by three values":            func(e *MuxEndpoint) { e.Fragments3Tuple = true },
		"cookie keys: not with fragments by three values, or source": func(e *MuxEndpoint) { e.SourcePrefix4 = 24 },
		"affinity cookie: member 32749: ids must be at most 32748": func(e *MuxEndpoint) {
			e.Members = append(slices.Clone(e.Members), MuxMember{ID: 32749, Outer: fuzzOuter(77, false), MTU: 1500})
		},
	} {
		e := cookieServers()[0]
		change(&e)
		err := f.mux.Apply(MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{e}})
		if err == nil || !strings.Contains(err.Error(), strings.TrimSpace(want)) {
			t.Errorf("expected %q: %v", want, err)
		}
	}
	f.checkEmpty()
}

// liveSets are the sets of keys that the tables hold, by content.
func (f flowFixture) liveSets() map[MuxCookie]int {
	sets := map[MuxCookie]int{}
	for _, r := range f.mux.memory.cookieSets {
		if r != (muxCookieSet{}) {
			sets[cookieOf(&r)]++
		}
	}
	return sets
}

// TestCookieSets: endpoints with equal keys share a line, keys that nobody uses leave the memory, and another process finds what there is.
func TestCookieSets(t *testing.T) {
	keys := func(from byte) *MuxCookie {
		return &MuxCookie{Keys: [2][16]byte{{from}, {from + 1}}, Live: [2]bool{true, from%2 == 0}}
	}
	endpoint := func(port uint16, k *MuxCookie) MuxEndpoint {
		e := cookieEndpoint(muxVIP4, port, "10.20.1.11")
		e.Cookie = k
		return e
	}
	f := newFlowFixture(t, endpoint(80, keys(2)), endpoint(81, keys(2)), endpoint(82, keys(4)))
	expect := func(want ...*MuxCookie) {
		t.Helper()
		got := f.liveSets()
		for _, k := range want {
			if got[*k] != 1 {
				t.Errorf("keys %v are there %d times", k.Keys, got[*k])
			}
		}
		if len(got) != len(want) || f.mux.tables.cookies.indices.n != uint32(len(want)) {
			t.Errorf("%d sets, %d in use: want %d", len(got), f.mux.tables.cookies.indices.n, len(want))
		}
	}
	expect(keys(2), keys(4))
	f.to(endpoint(80, keys(6)), endpoint(81, keys(2)), endpoint(82, keys(4)))
	expect(keys(2), keys(4), keys(6))
	f.readopt()
	expect(keys(2), keys(4), keys(6))
	f.to(endpoint(80, keys(4)), endpoint(81, keys(4)), endpoint(82, keys(4)))
	expect(keys(4))
	one := keys(3) // its other key does not count, and is not kept
	f.to(endpoint(80, one), endpoint(81, keys(4)), flowEndpoint(82, "10.20.1.11"))
	f.readopt()
	expect(&MuxCookie{Keys: [2][16]byte{{3}}, Live: [2]bool{true}}, keys(4))
	f.to(flowEndpoint(80, "10.20.1.11"))
	expect()
	f.to()
	f.checkEmpty()
}

// TestCookieSetsRunOut: what has no room is refused, and says so; what others gave up is waited for.
func TestCookieSetsRunOut(t *testing.T) {
	f := newFlowFixture(t)
	room := len(f.mux.memory.cookieSets)
	state := func(n int, salt byte) (out []MuxEndpoint) {
		for i := range n {
			e := cookieEndpoint(muxVIP4, uint16(1+i), "10.20.1.11")
			e.Cookie = &MuxCookie{Keys: [2][16]byte{{byte(i), byte(i >> 8), salt}}, Live: [2]bool{true}}
			out = append(out, e)
		}
		return out
	}
	half := room / 2
	f.to(state(half, 1)...)
	if got := len(f.liveSets()); got != half {
		t.Fatalf("%d sets of %d", got, half)
	}
	// All of them change, twice: the second time there is no room before what the first gave up is free.
	for salt := range byte(2) {
		must(t, f.mux.Apply(MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: state(half, 2+salt)}))
	}
	f.to(state(half, 3)...)
	if got := len(f.liveSets()); got != half {
		t.Fatalf("%d sets of %d", got, half)
	}
	for i := range f.mux.memory.cookieSets {
		f.mux.tables.cookies.indices.reserve(uint32(i)) // nothing is left
	}
	err := f.mux.Apply(MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: state(half, 4)})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("cookie keys: no room: at most %d sets", room)) {
		t.Errorf("no room: %v", err)
	}
	for _, p := range f.mux.Pressure() {
		if p.Name == "cookie_sets" && (p.Used != uint64(room) || p.Capacity != uint64(room)) {
			t.Errorf("pressure %+v", p)
		}
	}
}

// TestCookieKeyRotation is T15 (protocol section 1.7) as the mux sees it: each step of a rotation, whatever is stamped then.
func TestCookieKeyRotation(t *testing.T) {
	f := newFlowFixture(t)
	r := seeded(t)
	key := func(epoch int) (k [16]byte) {
		k[0], k[1] = byte(epoch), 1
		return k
	}
	for epoch := 1; epoch < 12; epoch++ {
		keys := MuxCookie{}
		for _, e := range []int{epoch - 1, epoch} {
			keys.Keys[e%2], keys.Live[e%2] = key(e), true
		}
		for _, rested := range []bool{false, true} {
			if rested { // the former key's slot is given up before the next one comes
				keys.Keys[(epoch-1)%2], keys.Live[(epoch-1)%2] = [16]byte{}, false
			}
			servers := cookieServers()
			for i := range servers {
				servers[i].Cookie = &keys
			}
			f.to(servers...)
			for range 40 {
				mint := epoch
				if !rested {
					mint -= r.IntN(2)
				}
				id, from := uint16(r.IntN(3)), uint16(r.Uint32())
				stamp := stampFor(segment6(from, 0), MuxCookie{Keys: [2][16]byte{key(mint), key(mint)}}, uint8(mint%2), id)
				if got, counted := f.noted(segment6(from, wire.ACK, usualOptions(stamp)...)); got.member.Member != id || len(counted) > 0 {
					t.Fatalf("epoch %d, stamped in %d, rested %v: member %d of %d, counted %v", epoch, mint, rested, got.member.Member, id, counted)
				}
			}
		}
	}
}
