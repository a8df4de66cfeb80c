package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// tableView is what a trace reads: the memory-mapped tables, or the fake's state.
type tableView interface {
	vip(vni uint32, a netip.Addr) bool
	// find is the endpoint that takes a packet.
	find(Packet) (lb.EndpointKey, bool)
	endpoint(lb.EndpointKey) (endpointView, bool)
	// guard is what applies to a whole VIP; false when nothing does.
	guard(vip lb.EndpointKey) (guardView, bool)
	tunnelSources() []netip.Prefix
	// snat is who has a port of a VIP; false when the VIP has no SNAT.
	snat(vip lb.EndpointKey, port uint16) (snatView, bool)
	// remembered is the flow of an endpoint with this hash under flowKey; false when the table has none that counts.
	remembered(k lb.EndpointKey, hash uint64) (Flow, bool)
	flowKey() ring.Key
	// spreadKey is that of outer sources of packets whose connection id names their member.
	spreadKey() ring.Key
	// nat is the session of path nat of a packet, and the addresses that the mux sends from to servers.
	nat(Packet) (natView, bool, []NATAddress)
}

// endpointView is one endpoint as readers see it.
type endpointView struct {
	ring    []uint16
	code    uint8
	key     ring.Key
	count   int // member ids lie below it
	members map[uint16]memberView
	// source is how many bits of the client's address make the flow, 0 for whole flows.
	source                int
	onePacket, threeTuple bool
	flow                  bool // flows are remembered
	schedule              scheduleView
	cookies               *cookieKeys
	quic                  *MuxQUIC
	nat                   bool // packets are rewritten both ways
	flowsFirst            bool // the flow table goes before cookies and connection ids
	keepDead              bool // flows stay at dead members
}

// keeps tells whether packets of a member's own flows go to it.
func (e *endpointView) keeps(m memberView) bool { return m.alive || e.keepDead }

// guardView is what applies to a whole VIP.
type guardView struct {
	denied         func(client netip.Addr) bool // nil: every source is taken
	packets, flows uint64                       // a second, 0: no limit
}

type memberView struct {
	outer     netip.Addr
	mtu       uint32
	port      uint16 // of path nat: 0 for the one that the packet came to
	choosable bool
	alive     bool
	resolved  bool
}

// The verdicts of a trace, named as the reasons are.
const (
	traceForwarded    = "forwarded"
	traceNotOurs      = "pass_not_ours"
	traceNoEndpoint   = "no_endpoint"
	traceNoBackend    = "no_backend"
	traceSourceDenied = "source_denied"
	traceSNATNobody   = "snat_nobody"
	traceBadSource    = "bad_source"
	traceNATNoAddress = "nat_no_address"
)

// sourcePossible returns false for addresses that no host sends from (RFC 1122 section 3.2.1.3, RFC 4291 section 2.5); the C twin is
// source_possible.
func sourcePossible(a netip.Addr) bool {
	if a.Is4() {
		first := a.As4()[0]
		return first != 0 && first != 127 && first < 224
	}
	return !a.IsMulticast() && !a.IsUnspecified() && !a.IsLoopback() && !a.Is4In6()
}

// impossible ends the trace of a packet from an address that no host has.
func (t *Trace) impossible(p Packet) bool {
	if sourcePossible(p.Client) {
		return false
	}
	t.Verdict = traceBadSource
	t.step("no host sends from %s", p.Client)
	return true
}

// tracePacket walks a view as the program does, and says what it saw.
func tracePacket(p Packet, view tableView) (Trace, error) {
	p.VIP, p.Client = p.VIP.Unmap(), p.Client.Unmap()
	key := lb.EndpointKey{VNI: p.VNI, VIP: p.VIP, Protocol: p.Protocol, Port: p.Port}
	t := Trace{Endpoint: key}
	if !p.VIP.IsValid() || p.VIP.Is4() != p.Client.Is4() || !p.Client.IsValid() {
		return t, fmt.Errorf("trace: client %v and VIP %v: must be addresses of one family", p.Client, p.VIP)
	}
	found, ok := view.find(p)
	var e endpointView
	if ok {
		t.Endpoint = found
		e, ok = view.endpoint(found)
	}
	switch {
	case !ok && !view.vip(p.VNI, p.VIP):
		t.Verdict = traceNotOurs
		t.step("%s is no VIP of this mux: the packet goes to the kernel", p.VIP)
		return t, nil
	case !ok:
		if s, has := view.snat(vipKey(key), p.Port); has {
			if t.impossible(p) {
				return t, nil
			}
			t.outbound(p, s, view)
			return t, nil
		}
		t.Verdict = traceNoEndpoint
		t.step("%s is a VIP, but no endpoint of it has %s port %d", p.VIP, p.Protocol, p.Port)
		return t, nil
	}
	t.step("endpoint %s found", describeKey(found))
	if t.refused(p, view) {
		return t, nil
	}
	hash := t.identify(p, e, found, ring.FlowHash)
	if e.nat {
		if t.impossible(p) {
			return t, nil
		}
		t.followNAT(p, e, found, hash, view)
		return t, nil
	}
	if t.flowsFirst(p, e, found, view) {
		e.cookies, e.quic = nil, nil
	}
	if by, ok := t.followCookie(p, e); ok {
		hash = by
	} else if by, ok := t.followQUIC(p, e, view); ok {
		hash = by
	} else if t.impossible(p) {
		return t, nil
	} else if e.flow {
		ringHash := hash
		hash = flowHash(p, e, found, view.flowKey(), false)
		f, ok := view.remembered(found, hash)
		if !t.follow(e, p.Segment, f, ok) && !t.followClient(p, e, found, view) && !t.schedule(e, p, ringHash) {
			t.choose(e, ringHash)
		}
	} else {
		t.choose(e, hash)
	}
	if t.Verdict == traceForwarded {
		t.Source = outerSource(view.tunnelSources(), t.Outer.Is4(), hash)
		t.step("encapsulated from %s to %s", t.Source, t.Outer)
	}
	return t, nil
}

// choose walks the ring and the fallback chain.
func (t *Trace) choose(e endpointView, hash uint64) {
	if len(e.ring) == 0 {
		t.Verdict = traceNoBackend
		t.step("it has no ring: no member has weight")
		return
	}
	slot := ring.Slot(hash, e.code)
	t.step("flow hash %#016x is slot %d of %d", hash, slot, len(e.ring))
	seen := map[uint16]bool{}
	c, ok := ring.Choose(e.ring, e.code, e.count, hash, func(id uint16) bool {
		m, present := e.members[id]
		if present && m.alive && m.choosable {
			return true
		}
		if !seen[id] {
			t.step("member %d is %s", id, unusable(m, present))
		}
		seen[id] = true
		return false
	})
	if !ok {
		t.Verdict = traceNoBackend
		t.step("no member is usable")
		return
	}
	switch {
	case c.Probes == 0:
		t.step("the slot is member %d's", c.Member)
	case c.Probes <= ring.FallbackProbes:
		t.step("fallback %d, slot %d: member %d", c.Probes, ring.Fallback(slot, e.code, c.Probes), c.Member)
	default:
		t.step("the whole chain is down; the scan from member %d on finds member %d", ring.ScanStart(slot, e.count), c.Member)
	}
	t.forward(c.Member, e.members[c.Member])
}

// forward ends the choice.
func (t *Trace) forward(id uint16, m memberView) {
	t.Verdict, t.Member, t.Outer = traceForwarded, id, m.outer
	if !m.resolved {
		t.step("the next hop to %s is not resolved here: the kernel's routing table is asked", m.outer)
	}
}

func unusable(m memberView, present bool) string {
	switch {
	case !present:
		return "gone"
	case !m.alive:
		return "down"
	}
	return "without weight"
}

func (t *Trace) step(format string, args ...any) {
	t.Steps = append(t.Steps, fmt.Sprintf(format, args...))
}

// outerSource is the outer source of a flow (bpf/lib/encap.h).
func outerSource(sources []netip.Prefix, is4 bool, hash uint64) netip.Addr {
	for _, p := range sources {
		if p.Addr().Is4() != is4 {
			continue
		}
		p = p.Masked()
		if is4 {
			a := p.Addr().As4()
			host := uint32(hash) & uint32(uint64(1)<<(32-p.Bits())-1)
			binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|host)
			return netip.AddrFrom4(a)
		}
		a := p.Addr().As16()
		binary.BigEndian.PutUint32(a[8:], 0)
		binary.BigEndian.PutUint32(a[12:], uint32(hash))
		return netip.AddrFrom16(a)
	}
	return netip.Addr{}
}

// tablesView shows the memory-mapped tables to tracePacket: what is read is what the program reads.
type tablesView struct {
	t    *muxTables
	tick uint64 // the present one of flow stamps
}

func (v tablesView) vip(vni uint32, a netip.Addr) bool {
	_, ok := v.t.slots.find(lb.EndpointKey{VNI: vni, VIP: a})
	return ok
}

func (v tablesView) tunnelSources() []netip.Prefix { return v.t.tunnelSources() }

func (v tablesView) endpoint(k lb.EndpointKey) (endpointView, bool) {
	slot, ok := v.t.slots.find(k)
	if !ok {
		return endpointView{}, false
	}
	mem, record := v.t.mem, &v.t.mem.slots[slot]
	word, members := load(&record.Ring), load(&record.Members)
	view := endpointView{count: int(members >> 32), members: map[uint16]memberView{}}
	v.identity(&view, record)
	policy := load(&record.Policy)
	view.flow = policy>>muxPolicyShiftPOLICY_FLAGS_SHIFT&uint64(muxEndpointFlagENDPOINT_FLOW) != 0
	view.nat = policy>>muxPolicyShiftPOLICY_FLAGS_SHIFT&uint64(muxEndpointFlagENDPOINT_NAT) != 0
	view.flowsFirst = policy>>muxPolicyShiftPOLICY_FLAGS_SHIFT&uint64(muxEndpointFlagENDPOINT_FLOWS_FIRST) != 0
	view.keepDead = policy>>muxPolicyShiftPOLICY_FLAGS_SHIFT&uint64(muxEndpointFlagENDPOINT_KEEP_DEAD) != 0
	view.cookies, view.quic = v.cookiesAt(policy), v.quicAt(policy)
	view.schedule = v.schedule(record, members)
	if word != 0 {
		first := uint32(word)
		view.code = uint8(word >> 32)
		view.ring = slices.Clone(slotsOf(mem.rings[first : first+1<<view.code/slotsPerWord]))
		key := &mem.config.RingKeys[uint8(word>>muxRingWordBitRING_WORD_KEY_SHIFT)&uint8(muxLimitLIMIT_RING_KEYS-1)]
		view.key = ring.Key{K0: key.K0, K1: key.K1}
		if extra := load(&record.Extra); extra != 0 && word>>muxRingWordBitRING_WORD_KEYED_SHIFT&1 != 0 {
			view.key = view.key.Tweaked(mem.extras[extra-1].RingTweak)
		}
	}
	for id := range view.count {
		w := load(&mem.members[uint32(members)+uint32(id)])
		if w&memberPresent == 0 {
			continue
		}
		b := &mem.backends[uint32(w)]
		view.members[uint16(id)] = memberView{
			outer: netip.AddrFrom16(b.OuterDst).Unmap(), mtu: b.Mtu, port: uint16(b.Port),
			choosable: w&memberChoosable != 0, alive: w&memberAlive != 0,
			resolved: load(&b.Nexthop)>>muxNexthopBitNEXTHOP_VALID_SHIFT != 0,
		}
	}
	return view, true
}

// find looks the slot of a key up as the program does.
func (t *slotTable) find(k lb.EndpointKey) (uint32, bool) {
	vip, word := k.VIP.As16(), endpointKeyWord(k)
	for i := range t.probes(k) {
		s := &t.mem[i]
		value := load(&s.Value)
		if value == uint64(muxEndpointSlotValueENDPOINT_SLOT_EMPTY) {
			return 0, false
		}
		first := uint64(muxEndpointSlotValueENDPOINT_SLOT_FIRST)
		if s.Vip == vip && s.Key == word && value >= first {
			return i, true
		}
	}
	return 0, false
}
