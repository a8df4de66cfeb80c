package dataplane

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/snat"
)

// fuzzSNAT is what the fuzzer keeps for leases. They have a generator of their own, as probes have.
type fuzzSNAT struct {
	r      *rand.Rand
	pieces [12]fuzzPieces
}

// beginSNAT begins an episode with leases of some VIPs.
func (f *fuzz) beginSNAT() {
	f.sn = fuzzSNAT{r: rand.New(rand.NewPCG(f.seed, 4))}
	f.model.snat.vips = map[netip.Addr]*modelLeases{}
	f.model.snat.key = f.model.flows.key
	f.apart(func() {
		for range 3 {
			f.randomSNAT()
		}
	})
}

// apart does something with the generator of leases.
func (f *fuzz) apart(do func()) {
	r, pieces := f.r, f.gen.pieces
	f.r, f.gen.pieces = f.sn.r, f.sn.pieces
	do()
	f.r, f.gen.pieces, f.sn.pieces = r, pieces, f.gen.pieces
}

// outbound changes leases now and then, and gives a packet to program and model that is for a port of a VIP with SNAT, or nearly.
func (f *fuzz) outbound() {
	f.apart(func() {
		if f.one(2000) {
			f.randomSNAT()
		}
		if f.one(40) {
			f.randomLease()
		}
		if !f.one(5) {
			return
		}
		if w, ok := f.gen.leased(); ok {
			frame, linear := f.gen.outbound(w)
			f.packet(frame, linear)
		}
	})
}

// randomSNAT gives a VIP other leases, or none.
func (f *fuzz) randomSNAT() {
	vip := pick(f.r, muxVIP4, fuzzVIPs[1], fuzzVIPs[4])
	l := &modelLeases{}
	if old := f.model.snat.vips[vip]; old != nil && f.one(3) {
		l.members = old.members // the same, with other words
	} else if !f.one(4) {
		for range 1 + f.r.IntN(6) {
			m := SNATMember{Outer: fuzzOuter(f.r.IntN(24), f.one(2)), Encap: pick(f.r, lb.EncapIPIP, lb.EncapGUE), MTU: uint32(pick(f.r, 1500, 1500, 0, 600, 1300))}
			if m.DIP = m.Outer; f.one(8) {
				m = SNATMember{}
			}
			l.members = append(l.members, m)
		}
	}
	for range 60 {
		if len(l.members) > 0 {
			l.words[f.leasedRange()] = uint16(f.r.IntN(len(l.members) + 1))
		}
	}
	keys, err := snatBackends(snat.VIP{Addr: vip}, l.members, &l.words)
	must(f.t, err)
	key := lb.EndpointKey{VIP: vip}
	var before uint32
	if old := f.mux.tables.snat.byVIP[key]; old != nil {
		before = old.index + 1
	}
	c, err := f.held.stageBy(func(crowded bool) (*change, error) { return f.mux.tables.stageSNAT(key, keys, &l.words, crowded) })
	if err != nil {
		if !strings.Contains(err.Error(), "no room") {
			f.t.Fatal(err)
		}
		return
	}
	c.publish()
	f.held.published(c, f.one(2))
	delete(f.model.snat.vips, vip)
	if len(l.members) > 0 {
		f.model.snat.vips[vip] = l
	}
	if now := f.mux.tables.snat.byVIP[key]; now == nil || now.index+1 != before {
		f.forgetOutbound(key)
	}
}

// forgetOutbound forgets, in the program too, the fragments that went to a VIP's servers: others may come to their places.
func (f *fuzz) forgetOutbound(vip lb.EndpointKey) {
	f.entered = slices.DeleteFunc(f.entered, func(k modelFragmentKey) bool {
		if f.model.edge.fragments[k].endpoint.Key != vip {
			return false
		}
		must(f.t, f.mux.objects.Fragments.Delete(rawFragmentKey(k)))
		delete(f.model.edge.fragments, k)
		return true
	})
}

// leasedRange is a range, one of few as a rule.
func (f *fuzz) leasedRange() int {
	if f.one(8) {
		return f.r.IntN(snat.Ranges)
	}
	return pick(f.r, 6, 7, 10, 125, 128, 625, 1000, snat.Ranges-2) + f.r.IntN(2)
}

// randomLease changes a word.
func (f *fuzz) randomLease() {
	vip := pick(f.r, muxVIP4, fuzzVIPs[1], fuzzVIPs[4])
	l := f.model.snat.vips[vip]
	if l == nil {
		return
	}
	c := SNATWord{snat.Range(f.leasedRange()), uint16(f.r.IntN(len(l.members) + 1))}
	must(f.t, f.mux.ChangeSNAT(snat.VIP{Addr: vip}, []SNATWord{c}))
	l.words[c.Range] = c.Word
}

// leased is a flow to a port of a VIP with SNAT, from another such port now and then; false: no VIP has SNAT.
func (g *fuzzFrames) leased() (w fuzzFlow, ok bool) {
	vips := make([]netip.Addr, 0, 4)
	for _, vip := range fuzzVIPs {
		if g.f.model.snat.vips[vip] != nil {
			vips = append(vips, vip)
		}
	}
	if len(vips) == 0 {
		return w, false
	}
	vip := pick(g.f.r, vips...)
	w = g.flowTo(lb.EndpointKey{VIP: vip, Protocol: pick(g.f.r, lb.TCP, lb.UDP)})
	w.to = uint16(g.f.leasedRange()*8 + g.f.r.IntN(8))
	if g.f.one(6) {
		w.client, w.from = pick(g.f.r, vips...), uint16(g.f.leasedRange()*8+g.f.r.IntN(8))
		if e, found := g.f.randomEndpoint(); found && e.Key.VIP == vip && g.f.one(2) {
			w.protocol, w.to = byte(e.Key.Protocol), e.Key.Port
		}
	}
	return w, true
}

// outbound makes a frame of a flow: TCP and UDP, echo replies, errors, fragments.
func (g *fuzzFrames) outbound(w fuzzFlow) (frame []byte, linear int) {
	r := g.f.r
	g.ip = g.ip[:0]
	switch n := r.IntN(10); {
	case n < 2:
		g.icmp(w, g.echo(w))
	case n < 4:
		g.icmpErrorAboutEcho(w)
	case n < 6:
		g.icmpError(w)
	case n < 8:
		g.fragment(w)
	default:
		g.packet(w, g.transport(w, g.size()))
	}
	if g.f.one(20) { // of an echo reply
		payload := g.echo(w)
		w.protocol = 1
		g.packet4(w, uint16(r.IntN(8)), pick[uint16](r, 0x2000, 0x2000, 0x2040, 64), payload)
	}
	return g.frame(w)
}

// echo is an echo reply to the flow's port as identifier, or a request.
func (g *fuzzFrames) echo(w fuzzFlow) []byte {
	b := []byte{pick[byte](g.f.r, 0, 0, 0, 8), 0, 0, 0}
	b = binary.BigEndian.AppendUint16(b, w.to)
	return append(b, g.data[g.f.r.IntN(100):][:2+g.f.r.IntN(60)]...)
}

// icmpErrorAboutEcho makes an error about an echo request that was sent from the flow's port, or about a reply.
func (g *fuzzFrames) icmpErrorAboutEcho(w fuzzFlow) {
	back := w
	back.client, back.vip, back.protocol = w.vip, w.client, 1
	echo := g.echo(w)
	echo[0] ^= 8
	g.packet4(back, 5, 0, echo)
	quote := g.ip[:min(len(g.ip), 20+g.f.r.IntN(40))]
	b := append([]byte{pick[byte](g.f.r, 3, 11, 12), 1, 0, 0, 0, 0, 0, 0}, quote...)
	w.client = fuzzClient(g.f.r.IntN(fuzzClients), false)
	g.icmp(w, b)
}
