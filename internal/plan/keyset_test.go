package plan

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

const keyRest = 24 * time.Hour

// TestKeySetKeepsItsPromise takes random steps of a key set. Muxes and hosts apply each phase at
// any moment after it began and before the next. Every mux must read each stamp of any host, two
// live keys must never have the same id in packets, and the bytes of a key must never change.
func TestKeySetKeepsItsPromise(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		now := epoch
		set := NewKeySet("web", SetKey{Epoch: 1, Key: [16]byte{1}, Made: now})
		bytes := map[uint32][16]byte{1: {1}}
		muxes, hosts := make([]KeySet, 3), make([]KeySet, 3) // the sets they applied
		behind := func() (some bool) {
			for _, nodes := range [][]KeySet{muxes, hosts} {
				for _, n := range nodes {
					some = some || n.Phase != set.Phase
				}
			}
			return some
		}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0:
				i := rapid.IntRange(0, 2).Draw(rt, "mux")
				muxes[i] = set
			case 1:
				i := rapid.IntRange(0, 2).Draw(rt, "host")
				hosts[i] = set
			case 2:
				now = now.Add(time.Duration(rapid.IntRange(0, 25).Draw(rt, "hours")) * time.Hour)
			case 3:
				if behind() && !rapid.Bool().Draw(rt, "all obey") {
					next, over := set.Step(now, false, keyRest)
					if over && set.Waits() {
						rt.Fatalf("phase %s is over without all nodes", set.Phase)
					}
					set = next
					break
				}
				for i := range muxes {
					muxes[i], hosts[i] = set, set
				}
				set, _ = set.Step(now, true, keyRest)
			case 4:
				key := [16]byte{byte(rapid.IntRange(2, 255).Draw(rt, "key"))}
				next, wrong := set.Rotate(key, true, now, keyRest)
				if want := set.Phase == KeysSteady || set.Phase == KeysRest && now.Sub(set.Since) >= keyRest; want != (wrong == "") {
					rt.Fatalf("rotation in phase %s, %s old: %q", set.Phase, now.Sub(set.Since), wrong)
				}
				// The controller waits until all nodes applied the rest phase before the next one
				// begins, because rest lasts a day.
				if wrong == "" && !behind() {
					set = next
					bytes[set.Mint()+1] = key
				}
			}
			checkKeys(rt, &set, bytes)
			for _, h := range hosts {
				for _, m := range muxes {
					if len(h.Keys) == 0 || len(h.OfHosts()) == 0 || len(m.Keys) == 0 {
						continue
					}
					if keys := m.MuxCookies(netip.Addr{}); !reads(keys, h.Mint()) {
						rt.Fatalf("a host in phase %s stamps with %d, a mux in phase %s has %v", h.Phase, h.Mint(), m.Phase, keys.Keys)
					}
				}
			}
		}
	})
}

func reads(keys CookieKeys, epoch uint32) bool {
	for _, k := range keys.Keys {
		if k.Epoch == epoch {
			return true
		}
	}
	return false
}

func checkKeys(rt *rapid.T, set *KeySet, bytes map[uint32][16]byte) {
	if n := len(set.Keys); n < 1 || n > 2 || n == 2 && set.Keys[1].Epoch != set.Keys[0].Epoch+1 {
		rt.Fatalf("keys %+v", set.Keys)
	}
	mux, cids := set.MuxCookies(netip.Addr{}), set.CIDs(netip.Addr{})
	if !reads(mux, set.Mint()) || cids.Mint != set.Mint() || len(cids.Keys) != len(mux.Keys) {
		rt.Fatalf("epoch %d is made, and the keys are %+v and %+v", set.Mint(), mux, cids)
	}
	if len(mux.Keys) == 2 && (mux.Keys[0].ID() == mux.Keys[1].ID() || cids.Keys[0].ConfigID() == cids.Keys[1].ConfigID()) {
		rt.Fatalf("two keys have one name: %+v", set.Keys)
	}
	for i, k := range mux.Keys {
		if k.Key != bytes[k.Epoch] || cids.Keys[i].Key != k.Key || cids.Keys[i].ConfigID() > 6 {
			rt.Fatalf("key %d became another", k.Epoch)
		}
	}
	if host, ok := set.HostCookies(netip.Addr{}); ok && (host.Mint != set.Mint() || !reads(host, host.Mint)) {
		rt.Fatalf("hosts have %+v", host)
	}
}

// TestKeyPhases follows one life of keys, as docs/ops/keys.md describes it.
func TestKeyPhases(t *testing.T) {
	at := epoch
	set := NewKeySet("web", SetKey{Epoch: 1, Key: [16]byte{1}, Made: at})
	expect := func(phase KeyPhase, live, hosts int, mint uint32) {
		t.Helper()
		if set.Phase != phase || len(set.Keys) != live || len(set.OfHosts()) != hosts || set.Mint() != mint {
			t.Fatalf("%+v, want phase %s, %d keys, %d of hosts, epoch %d", set, phase, live, hosts, mint)
		}
	}
	step := func(acked bool) (over bool) {
		set, over = set.Step(at, acked, keyRest)
		return over
	}
	refused := func(want string) {
		t.Helper()
		if _, wrong := set.Rotate([16]byte{9}, true, at, keyRest); !strings.Contains(wrong, want) || wrong == "" {
			t.Errorf("rotation: %q, want %q", wrong, want)
		}
	}
	expect(KeysSpread, 1, 0, 1)
	refused("must wait until nodes have the key of epoch 1")
	if step(false) {
		t.Error("over without muxes")
	}
	step(true)
	expect(KeysSwitch, 1, 1, 1)
	step(true)
	expect(KeysSteady, 1, 1, 1)
	if due := set.Due(keyRest, time.Hour); !due.Equal(epoch.Add(time.Hour)) || !set.Due(keyRest, 0).IsZero() || step(true) {
		t.Errorf("steady: due %s", due)
	}
	at = at.Add(time.Hour)
	set, _ = set.Rotate([16]byte{2}, true, at, keyRest)
	expect(KeysSpread, 2, 1, 1)
	refused("must wait until the rotation to epoch 2 is over")
	step(true)
	expect(KeysSwitch, 2, 2, 2)
	step(true)
	expect(KeysRest, 2, 2, 2)
	refused("must wait until 2026-01-02T01:00:00Z: until then epoch 1 is read beside epoch 2")
	if due := set.Due(keyRest, time.Hour); !due.Equal(at.Add(keyRest)) || step(true) {
		t.Errorf("resting: due %s", due)
	}
	back := set.Again(at)
	if back.Phase != KeysReturn || len(back.Keys) != 2 || len(back.OfHosts()) != 0 || back.Mint() != 2 {
		t.Errorf("needed again: %+v", back)
	}
	at = at.Add(keyRest)
	if next, wrong := set.Rotate([16]byte{3}, true, at, keyRest); wrong != "" || next.Keys[0].Epoch != 2 || next.Keys[1].Epoch != 3 {
		t.Errorf("rotated after the rest: %+v, %s", next, wrong)
	}
	step(false)
	expect(KeysSteady, 1, 1, 2)
}

// TestWhoNeedsKeys: cookies in TCP and encrypted connection ids need keys.
func TestWhoNeedsKeys(t *testing.T) {
	for _, c := range []struct {
		ep           lb.Endpoint
		cookie, cids bool
	}{
		{lb.Endpoint{Protocol: lb.TCP, Affinity: lb.AffinityCookie}, true, false},
		{lb.Endpoint{Protocol: lb.TCP, Affinity: lb.AffinityFlow}, false, false},
		{lb.Endpoint{Protocol: lb.UDP, QUIC: &lb.QUIC{}}, false, true},
		{lb.Endpoint{Protocol: lb.UDP, QUIC: &lb.QUIC{}, Affinity: lb.AffinityHash}, false, false},
		{lb.Endpoint{Protocol: lb.UDP, QUIC: &lb.QUIC{Format: lb.QUICLBPlain}}, false, false},
		{lb.Endpoint{Protocol: lb.UDP, QUIC: &lb.QUIC{Format: lb.QUICMsquic}}, false, false},
		{lb.Endpoint{Protocol: lb.UDP}, false, false},
	} {
		s := &lb.Service{Endpoints: []lb.Endpoint{{Protocol: lb.TCP}, c.ep}}
		lb.SetDefaults(s)
		if KeysOfCookies.Needs(s) != c.cookie || KeysOfCIDs.Needs(s) != c.cids {
			t.Errorf("%+v: cookies %v, cids %v", c.ep, KeysOfCookies.Needs(s), KeysOfCIDs.Needs(s))
		}
	}
}
