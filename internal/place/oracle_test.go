package place

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"pgregory.net/rapid"
)

// world holds the inputs of a placer, and checks its decisions by brute force.
type world struct {
	bounds Bounds
	muxes  map[string]Mux
	vips   map[Key]VIP
	on     map[Key][]string
	// kept is like on, without muxes that were dropped, even if one of the same name was added
	// since.
	kept map[Key][]string
}

func keyN(i int) Key { return Key{VIP: netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})} }

func newWorld(b Bounds) *world {
	return &world{bounds: b, muxes: map[string]Mux{}, vips: map[Key]VIP{}, on: map[Key][]string{}, kept: map[Key][]string{}}
}

// scratch computes the whole placement anew from the current one.
func (w *world) scratch(rt *rapid.T) *Placer {
	muxes := rapid.Permutation(slices.Collect(maps.Values(w.muxes))).Draw(rt, "order of muxes")
	vips := rapid.Permutation(slices.Collect(maps.Values(w.vips))).Draw(rt, "order of VIPs")
	return Place(w.bounds, muxes, vips, w.kept)
}

// sorted returns the muxes by name.
func (w *world) sorted() []Mux {
	var out []Mux
	for _, name := range slices.Sorted(maps.Keys(w.muxes)) {
		out = append(out, w.muxes[name])
	}
	return out
}

func live(m Mux) bool { return !m.Drain && !m.Down }

// used returns the VIPs, the packets and the VIPs by number of a mux.
func (w *world) used(name string) (vips int, packets uint64, byNumber int) {
	for k, on := range w.on {
		if slices.Contains(on, name) {
			vips++
			packets += share(w.vips[k].Load, len(on))
			if w.vips[k].By == ByVIPs {
				byNumber++
			}
		}
	}
	return vips, packets, byNumber
}

// room reports whether a mux can take one more VIP with that many packets.
func (w *world) room(m Mux, packets uint64) bool {
	vips, used, _ := w.used(m.Name)
	if m.VIPs > 0 && vips+1+int(m.BaseVIPs) > int(m.VIPs) {
		return false
	}
	return m.Packets == 0 || packets == 0 || used+m.BasePackets+packets <= m.Packets
}

func (w *world) measure(name string, by By) uint64 {
	_, packets, number := w.used(name)
	if by == ByLoad {
		return packets + w.muxes[name].BasePackets
	}
	return uint64(number)
}

func (w *world) zones(on []string) map[string]int {
	out := map[string]int{}
	for _, name := range on {
		out[w.muxes[name].Zone]++
	}
	return out
}

// faults returns the rules that the current assignment breaks.
func (w *world) faults() []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for k, on := range w.on {
		v := w.vips[k]
		if len(on) > v.Replicas || !slices.IsSorted(on) || len(slices.Compact(slices.Clone(on))) != len(on) {
			add("%v is on %v, wanted on %d", k, on, v.Replicas)
		}
		for _, name := range on {
			if m, ok := w.muxes[name]; !ok || !live(m) {
				add("%v is on %s, which must have nothing", k, name)
			}
		}
		w.checkReplicas(v, add)
		w.checkZones(v, add)
	}
	for _, m := range w.sorted() {
		w.checkCapacity(m, add)
	}
	for _, by := range []By{ByVIPs, ByLoad} {
		w.checkEven(by, add)
	}
	return out
}

func (w *world) checkReplicas(v VIP, add func(string, ...any)) {
	on := w.on[v.Key]
	for n := len(on) + 1; n <= v.Replicas; n++ {
		can := len(on)
		for _, m := range w.muxes {
			if live(m) && !slices.Contains(on, m.Name) && w.room(m, share(v.Load, n)) {
				can++
			}
		}
		if can >= n {
			add("%v is on %d muxes, could be on %d of %d", v.Key, len(on), n, v.Replicas)
		}
	}
}

// checkZones: if a VIP has two muxes in a zone, every zone without it has no room.
func (w *world) checkZones(v VIP, add func(string, ...any)) {
	on := w.on[v.Key]
	zones := w.zones(on)
	for _, m := range w.muxes {
		if live(m) && !m.Away && zones[m.Zone] == 0 && len(on) > len(zones) && w.room(m, share(v.Load, len(on))) {
			add("%v is on %v in %d zones, and %s of zone %s has room", v.Key, on, len(zones), m.Name, m.Zone)
		}
	}
}

func (w *world) checkCapacity(m Mux, add func(string, ...any)) {
	vips, packets, _ := w.used(m.Name)
	if m.VIPs > 0 && vips > 0 && vips+int(m.BaseVIPs) > int(m.VIPs) {
		add("%s has %d VIPs of %d", m.Name, vips, m.VIPs)
	}
	if m.Packets == 0 || packets+m.BasePackets <= m.Packets {
		return
	}
	for k, on := range w.on {
		s := share(w.vips[k].Load, len(on))
		if !slices.Contains(on, m.Name) || s == 0 {
			continue
		}
		for _, o := range w.muxes {
			if live(o) && !o.Away && !slices.Contains(on, o.Name) && w.room(o, s) {
				add("%s has %d packets of %d, and %v could go to %s", m.Name, packets, m.Packets, k, o.Name)
			}
		}
	}
}

// movable reports whether a VIP can move from one mux to another without breaking a rule that
// precedes evenness.
func (w *world) movable(v VIP, from, to Mux) bool {
	on := w.on[v.Key]
	if !slices.Contains(on, from.Name) || slices.Contains(on, to.Name) || !w.room(to, share(v.Load, len(on))) {
		return false
	}
	next := append(slices.DeleteFunc(slices.Clone(on), func(n string) bool { return n == from.Name }), to.Name)
	return len(w.zones(next)) >= len(w.zones(on))
}

func (w *world) checkEven(by By, add func(string, ...any)) {
	var present []Mux
	sum := uint64(0)
	for _, m := range w.sorted() {
		if live(m) && !m.Away {
			present = append(present, m)
			sum += w.measure(m.Name, by)
		}
	}
	if len(present) == 0 {
		return
	}
	mean := (sum + uint64(len(present)) - 1) / uint64(len(present))
	bound := max(1, mean*uint64(w.bounds.VIPs)/100)
	if by == ByLoad {
		bound = max(1, mean*uint64(w.bounds.Load)/100)
	}
	for _, a := range present {
		for _, b := range present {
			x, y := w.measure(a.Name, by), w.measure(b.Name, by)
			if x <= y || x-y <= bound {
				continue
			}
			for k, v := range w.vips {
				s := share(v.Load, len(w.on[k]))
				better := by == ByVIPs || s > 0 && s < x-y
				if v.By == by && better && w.movable(v, a, b) {
					add("%s has %d and %s has %d of %v, and %v could move", a.Name, x, b.Name, y, by, k)
				}
			}
		}
	}
}

// mostReplicas returns the maximum number of replicas, by a flow from VIPs to muxes; loads are
// ignored.
func (w *world) mostReplicas() int {
	flow, used := map[Key]map[string]bool{}, map[string]int{}
	total := 0
	var augment func(k Key, seen map[string]bool) bool
	augment = func(k Key, seen map[string]bool) bool {
		for _, m := range w.sorted() {
			if !live(m) || flow[k][m.Name] || seen[m.Name] {
				continue
			}
			seen[m.Name] = true
			free := m.VIPs == 0 || used[m.Name]+int(m.BaseVIPs) < int(m.VIPs)
			for o := range flow {
				if free {
					break
				}
				if flow[o][m.Name] && augment(o, seen) {
					delete(flow[o], m.Name)
					used[m.Name]--
					free = true
				}
			}
			if free {
				flow[k][m.Name] = true
				used[m.Name]++
				return true
			}
		}
		return false
	}
	for k, v := range w.vips {
		flow[k] = map[string]bool{}
		for range v.Replicas {
			if augment(k, map[string]bool{}) {
				total++
			}
		}
	}
	return total
}
