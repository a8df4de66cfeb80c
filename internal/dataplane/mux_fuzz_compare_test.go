package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
)

// fuzzCount is what an endpoint should have counted.
type fuzzCount struct {
	total   Counter
	members map[uint16]Counter
}

// fuzzSeen is the flow table as it was when it was compared last: program's and model's.
type fuzzSeen struct {
	words [][8]uint64
	flows [][8]modelFlow
}

func newFuzzSeen(buckets int) fuzzSeen {
	return fuzzSeen{make([][8]uint64, buckets), make([][8]modelFlow, buckets)}
}

// fuzzVIP is where the tables keep the buckets of a VIP.
type fuzzVIP struct {
	guard  *muxVipGuard // nil: none
	ping   *uint64
	tooBig *uint64
	policy *MuxVIP // nil: nothing is said
}

// compare looks at what the last packet should have touched: what is different, or "".
func (f *fuzz) compare() string {
	for i, want := range f.wanted {
		var got uint64
		for at := i; at < len(f.mux.memory.reasons.cells); at += int(f.mux.memory.reasons.size) {
			got += f.mux.memory.reasons.cells[at]
		}
		if got != want {
			return fmt.Sprintf("reason %s: counted %d times, expected %d", MuxReasons().All[i].Name, got, want)
		}
	}
	if what := f.compareProbe(f.model.probes.touched); what != "" {
		return what
	}
	trail := &f.model.trail
	for _, i := range trail.buckets {
		if what := f.compareBucket(i); what != "" {
			return what
		}
	}
	if trail.remembered {
		if f.model.edge.fragments[trail.first].time == f.model.policy.now {
			f.enter(trail.first)
		}
		if what := f.compareFragment(trail.first); what != "" {
			return what
		}
	}
	if trail.pinged.IsValid() {
		if what := f.comparePing(trail.pinged); what != "" {
			return what
		}
	}
	if trail.counted {
		if what := f.count(); what != "" {
			return what
		}
		return f.compareGuard(trail.endpoint.VIP)
	}
	return ""
}

// count enters the last packet and compares the counters of its endpoint and member.
func (f *fuzz) count() string {
	trail := &f.model.trail
	c := f.counts[trail.endpoint]
	if c == nil {
		c = &fuzzCount{members: map[uint16]Counter{}}
		f.counts[trail.endpoint] = c
	}
	c.total.Packets++
	c.total.Bytes += uint64(trail.length)
	if trail.member < 0 {
		return ""
	}
	id := uint16(trail.member)
	n := c.members[id]
	n.Packets++
	n.Bytes += uint64(trail.length)
	c.members[id] = n
	e := f.mux.tables.entries[trail.endpoint]
	if got := sumOf(f.mux.memory.memberCounts, e.block.first+uint32(id)); got != n {
		return fmt.Sprintf("member %d of %v counted %v, expected %v", id, trail.endpoint, got, n)
	}
	return ""
}

// compareBucket compares a bucket of the flow table.
func (f *fuzz) compareBucket(i int) string {
	words, flows := &f.mux.memory.flows[i].Entries, &f.model.flows.buckets[i]
	if *words == f.seen.words[i] && *flows == f.seen.flows[i] {
		return ""
	}
	for j, want := range flows {
		if got := flowWord(words[j]); !f.sameFlow(got, want) {
			return fmt.Sprintf("bucket %d, entry %d is %#x (class %d, stamp %#x, member word %d), expected %+v", i, j, uint64(got),
				got.class(), uint64(got)&0xffff, got.member(), want)
		}
	}
	f.seen.words[i], f.seen.flows[i] = *words, *flows
	return ""
}

// sameFlow says whether an entry is what the model has there. Of endpoints that are gone the member is not looked at.
func (f *fuzz) sameFlow(got flowWord, want modelFlow) bool {
	if want.class == 0 || got == 0 {
		return want.class == 0 && got == 0
	}
	if uint64(got)>>39 != want.fingerprint || got.class() != want.class || uint64(got)&0xffff != want.stamp {
		return false
	}
	if want.gone {
		return true
	}
	e, id := f.mux.tables.entries[want.member.Endpoint], uint32(want.member.Member)
	if want.moved {
		return got.member() == e.moved.first+id
	}
	return got.member() == e.block.first+id
}

// rawFragmentKey is a key of the program's table.
func rawFragmentKey(k modelFragmentKey) muxFragmentKey {
	src, dst, ne := k.src.As16(), k.dst.As16(), binary.NativeEndian
	raw := muxFragmentKey{
		SrcHi: ne.Uint64(src[:8]), SrcLo: ne.Uint64(src[8:]), DstHi: ne.Uint64(dst[:8]), DstLo: ne.Uint64(dst[8:]),
		Id: be32(k.id), Scope: uint32(k.protocol),
	}
	if k.dst.Is4() {
		var id [4]byte
		binary.BigEndian.PutUint16(id[:], uint16(k.id))
		raw.Id = ne.Uint32(id[:])
	}
	return raw
}

// enter notes that the program has an entry for a packet's fragments, or a newer one.
func (f *fuzz) enter(k modelFragmentKey) {
	first := f.model.edge.fragments[k]
	if !first.known {
		f.entered = append(f.entered, k)
	}
	first.known = true
	f.model.edge.fragments[k] = first
}

// compareFragment compares the entry of a packet in fragments.
func (f *fuzz) compareFragment(k modelFragmentKey) string {
	var got muxFragment
	if err := f.mux.objects.Fragments.Lookup(rawFragmentKey(k), &got); err != nil {
		return fmt.Sprintf("fragments of %+v: %v", k, err)
	}
	first := f.model.edge.fragments[k]
	if first.gone {
		return ""
	}
	e := f.mux.tables.entries[first.endpoint.Key]
	members := e.block.first
	if first.endpoint.Key.Protocol == 0 {
		members = f.mux.tables.snat.byVIP[first.endpoint.Key].members.first
	}
	want := muxFragment{Slot: e.slot, Member: members + uint32(first.member), Hash: uint32(first.hash), Time: uint32(first.time)}
	if got != want {
		return fmt.Sprintf("fragments of %+v: %+v, expected %+v", k, got, want)
	}
	return ""
}

// tokens are what a bucket's word has left, as the model counts it.
func (f *fuzz) tokens(word, window uint64) uint64 {
	now := f.model.policy.now << bucketShift
	if full := now - window; word < full {
		word = full
	}
	return now - word
}

// sameBucket compares a bucket's word with the model's bucket; nil is a full one.
func (f *fuzz) sameBucket(word uint64, want *bucketModel) bool {
	if want == nil {
		return word == 0
	}
	return f.tokens(word, want.window) == min(want.tokens+(f.model.policy.now-want.last)<<bucketShift, want.window)
}

func (f *fuzz) comparePing(vip netip.Addr) string {
	if v := f.vips[vip]; v.ping != nil && !f.sameBucket(*v.ping, f.model.edge.pings[vip]) {
		return fmt.Sprintf("bucket of pings to %v: %#x, expected %+v", vip, *v.ping, f.model.edge.pings[vip])
	}
	return ""
}

func (f *fuzz) compareTooBig(vip netip.Addr) string {
	if v := f.vips[vip]; v.tooBig != nil && !f.sameBucket(*v.tooBig, f.model.edge.ptb[vip]) {
		return fmt.Sprintf("bucket of packet-too-big messages of %v: %#x, expected %+v", vip, *v.tooBig, f.model.edge.ptb[vip])
	}
	return ""
}

func (f *fuzz) compareGuard(vip netip.Addr) string {
	v := f.vips[vip]
	if v.guard == nil {
		return ""
	}
	if want := f.model.policy.packets[vip]; v.policy.Limits.Packets != 0 && !f.sameBucket(v.guard.PacketsSpent, want) {
		return fmt.Sprintf("bucket of packets to %v: %#x, expected %+v", vip, v.guard.PacketsSpent, want)
	}
	if want := f.model.policy.flows[vip]; v.policy.Limits.Connections != 0 && !f.sameBucket(v.guard.FlowsSpent, want) {
		return fmt.Sprintf("bucket of new flows to %v: %#x, expected %+v", vip, v.guard.FlowsSpent, want)
	}
	return ""
}

// checkAll compares all tables.
func (f *fuzz) checkAll() {
	if what := f.compareAll(); what != "" {
		f.differ("all tables: %s", what)
	}
}

func (f *fuzz) compareAll() string {
	if what := f.wrongSchedules(); what != "" {
		return what
	}
	f.seen = newFuzzSeen(len(f.mux.memory.flows)) // member words may have moved
	for i := range f.model.flows.buckets {
		if what := f.compareBucket(i); what != "" {
			return what
		}
	}
	for _, r := range f.model.probes.rules {
		if what := f.compareProbe(r); what != "" {
			return what
		}
	}
	for _, k := range f.entered {
		if what := f.compareFragment(k); what != "" {
			return what
		}
	}
	for vip := range f.vips {
		for _, what := range []string{f.comparePing(vip), f.compareTooBig(vip), f.compareGuard(vip)} {
			if what != "" {
				return what
			}
		}
	}
	for i := range f.wanted {
		if n := *f.mux.memory.reasons.own(uint32(i)); n != 0 {
			return fmt.Sprintf("reason %s: counted %d times in the agent's region", MuxReasons().All[i].Name, n)
		}
	}
	return f.compareCounts()
}

// compareCounts compares the counters of all endpoints.
func (f *fuzz) compareCounts() string {
	got, err := f.mux.Counters()
	must(f.t, err)
	for key, n := range got.Endpoints {
		want := f.counts[key]
		if want == nil {
			want = &fuzzCount{}
		}
		if n != want.total {
			return fmt.Sprintf("endpoint %v counted %v, expected %v", key, n, want.total)
		}
	}
	for key, n := range got.Members {
		var want Counter
		if c := f.counts[key.Endpoint]; c != nil {
			want = c.members[key.Member]
		}
		if n != want {
			return fmt.Sprintf("member %v counted %v, expected %v", key, n, want)
		}
	}
	return ""
}

// keepCounts forgets the counters of endpoints and members that are gone.
func (f *fuzz) keepCounts(stays map[lb.EndpointKey]bool) {
	for key, c := range f.counts {
		if !stays[key] {
			delete(f.counts, key)
			continue
		}
		for id := range c.members {
			if _, ok := f.model.alive[MemberKey{key, id}]; !ok {
				delete(c.members, id)
			}
		}
	}
}

// keepGuards finds the buckets of the VIPs, and lets the model forget those of VIPs that have none any more.
func (f *fuzz) keepGuards() {
	t, model := f.mux.tables, f.model
	f.vips = map[netip.Addr]fuzzVIP{}
	for key, e := range t.entries {
		if key.Protocol != 0 {
			continue
		}
		v := fuzzVIP{ping: &t.mem.pings[e.index], tooBig: &t.mem.tooBigs[e.index], policy: model.policyOf(key.VIP)}
		if g := t.guards.byVIP[key]; g != nil {
			v.guard = &t.mem.guards[g.index]
		}
		f.vips[key.VIP] = v
	}
	for _, vip := range fuzzVIPs {
		v, ok := f.vips[vip]
		if !ok {
			delete(model.edge.pings, vip)
			delete(model.edge.ptb, vip)
			delete(model.edge.firsts, vip)
		}
		if v.guard == nil {
			delete(model.policy.packets, vip)
			delete(model.policy.flows, vip)
		}
	}
}
