package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/shuntlb/shunt/internal/wire"
)

// fuzzProbes is the size of the table of probes.
const fuzzProbes = 64

// beginProbes begins an episode without rules, and lets the program take answers.
func (f *fuzz) beginProbes() {
	p := f.mux.probes
	f.pr = rand.New(rand.NewPCG(f.seed, 3))
	p.key = ProbeKey(f.pr.Uint64N(1 << 63))
	for number := range p.Size() {
		p.Remove(number)
		p.results[number] = muxProbeResult{}
	}
	_, err := f.mux.Probes()
	must(f.t, err)
	f.model.probes = &modelProbes{key: p.key, rules: map[uint32]*modelProbe{}}
	for range 30 {
		f.randomProbe()
	}
}

// probes changes rules now and then, and gives a packet to program and model that is about one, or nearly.
func (f *fuzz) probes() {
	saved := f.r
	f.r = f.pr
	defer func() { f.r = saved }()
	if f.one(60) {
		f.randomProbe()
	}
	if f.one(20) {
		f.randomRound(uint32(f.r.IntN(fuzzProbes)))
	}
	if !f.one(4) {
		return
	}
	frame, linear := f.gen.probe()
	f.packet(frame, linear)
}

// randomProbe makes a rule, changes it, or ends it.
func (f *fuzz) randomProbe() {
	number, p := uint32(f.r.IntN(fuzzProbes)), f.mux.probes
	if f.one(8) {
		p.Remove(number)
		delete(f.model.probes.rules, number)
		return
	}
	v6 := f.one(2)
	r := ProbeRule{Peer: netip.AddrPortFrom(fuzzOuter(f.r.IntN(6), v6), pick[uint16](f.r, 80, 80, 8080)), Local: probeLocal4}
	if v6 {
		r.Local = probeLocal6
	}
	if !f.one(12) {
		r.Hop = NextHop{MAC: [6]byte{2, 0, 0, 0, 0xaa, byte(f.r.IntN(3))}, Ifindex: pick(f.r, ingress, ingress, 7)}
		if f.one(6) {
			r.Hop.Tag = 0x8100_0123
		}
	}
	if !f.one(3) {
		r.Request = append([]byte(nil), f.gen.some(1+f.r.IntN(pick(f.r, 60, 200, ProbeRequestMax)))...)
	}
	if f.one(3) {
		tunnel := Tunnel{Outer: fuzzOuter(f.r.IntN(24), f.one(2)), Member: uint16(f.r.IntN(4096)), Sources: sources, Hash: f.r.Uint64(), Encap: Encap(f.r.IntN(2))}
		bare := 40
		if v6 {
			bare = 60
		}
		var err error
		r.Outer, err = tunnel.Header(!v6, bare)
		must(f.t, err)
	}
	if err := p.Put(number, r); errors.Is(err, ErrProbeRoom) {
		delete(f.model.probes.rules, number) // what was there is gone
		return
	} else if err != nil {
		f.t.Fatal(err)
	}
	f.model.probes.rules[number] = &modelProbe{number: number, rule: r}
	f.randomRound(number)
}

// randomRound begins a round of a rule, or ends it.
func (f *fuzz) randomRound(number uint32) {
	r := f.model.probes.rules[number]
	if r == nil {
		return
	}
	if r.on = !f.one(10); !r.on {
		f.mux.probes.End(number)
		return
	}
	isn := f.model.probes.key.ISN(number) | uint32(f.r.IntN(1<<11))
	if isn == r.isn {
		isn ^= 1
	}
	r.isn, r.port, r.result = isn, ProbePortFirst+uint16(f.r.IntN(1<<16-int(ProbePortFirst)-ProbeAttempts)), ProbeResult{}
	f.mux.probes.Begin(number, r.isn, r.port)
}

// compareProbe compares what the round of a rule came to.
func (f *fuzz) compareProbe(r *modelProbe) string {
	if r == nil || !r.on {
		return ""
	}
	if got := f.mux.probes.Result(r.number, r.isn); got != r.result {
		return fmt.Sprintf("probe %d of %s, %d bytes of request: came to %+v, expected %+v", r.number, r.rule.Peer, len(r.rule.Request), got, r.result)
	}
	return ""
}

// probe is a frame of a server that is probed, of somebody who would be, or about a probe.
func (g *fuzzFrames) probe() (frame []byte, linear int) {
	r, number := g.f.r, uint32(g.f.r.IntN(fuzzProbes+4))
	rule := g.f.model.probes.rules[number]
	if rule == nil {
		rule = &modelProbe{rule: ProbeRule{Peer: netip.AddrPortFrom(fuzzOuter(r.IntN(6), false), 80), Local: probeLocal4}}
		rule.isn = g.f.model.probes.key.ISN(number)
	}
	w := fuzzFlow{client: rule.rule.Peer.Addr(), vip: rule.rule.Local, protocol: 6, from: rule.rule.Peer.Port(), to: rule.port + uint16(r.IntN(ProbeAttempts+1))}
	if g.f.one(25) { // another one's answer
		w.client = fuzzOuter(r.IntN(6), w.vip.Is6())
	}
	switch {
	case g.f.one(40):
		w.to = uint16(r.Uint32())
	case g.f.one(40):
		w.from++
	}
	switch n := r.IntN(20); {
	case n < 3:
		g.probeError(rule, w)
	case n == 3: // a piece of an answer
		payload := g.answer(rule, w)
		if w.vip.Is4() {
			g.packet4(w, uint16(r.Uint32()), pick[uint16](r, 0x2000, 3), payload)
		} else {
			g.fragment6(w, r.Uint32(), pick[uint16](r, 0, 512), g.f.one(2), payload)
		}
	default:
		g.packet(w, g.answer(rule, w))
	}
	frame, _ = g.frame(w)
	return frame, 0 // headers that lie in several pieces are another matter
}

// answer is a segment of a server to a probe.
func (g *fuzzFrames) answer(rule *modelProbe, w fuzzFlow) []byte {
	r, be := g.f.r, binary.BigEndian
	text := ""
	if g.f.one(2) {
		text = pick(r, "HTTP/1.1 200 OK\r\n", "HTTP/1.0 503 No\r\n", "HTTP/1.1 404\n", "HTTP/1.1 100 Go on\r\n", "HTTP/1.1 200", "HTTP/2.0 200 OK\r\n", "HTTP/1.1 2x0 OK\r\n", "SSH-2.0-x")
	}
	size := len(text)
	if g.f.one(3) {
		size += r.IntN(pick(r, 20, 20, 1300))
	}
	b := g.transport(w, size)
	copy(b[len(b)-size:], text)
	behind := rule.isn + 1
	if !g.f.one(3) && text != "" || g.f.one(3) {
		behind += uint32(len(rule.rule.Request))
	}
	if g.f.one(12) {
		behind += pick(r, 1, 2, ^uint32(0), 1<<12, r.Uint32())
	}
	be.PutUint32(b[8:], behind)
	b[13] = pick[byte](r, wire.SYN|wire.ACK, wire.SYN|wire.ACK, wire.ACK, wire.ACK|wire.PSH, wire.ACK|wire.FIN, wire.RST|wire.ACK, wire.RST, wire.SYN, wire.ACK|wire.SYN|wire.FIN)
	if g.f.one(20) {
		b[13] = byte(r.Uint32())
	}
	return b
}

// probeError makes g.ip an ICMP error about a probe, or nearly.
func (g *fuzzFrames) probeError(rule *modelProbe, w fuzzFlow) {
	r, be := g.f.r, binary.BigEndian
	sent := fuzzFlow{client: w.vip, vip: w.client, protocol: 6, from: w.to, to: w.from}
	if g.f.one(20) {
		sent.protocol = 17
	}
	syn := g.transport(sent, r.IntN(20))
	be.PutUint32(syn[4:], rule.isn)
	if g.f.one(10) {
		syn[7]++
	}
	g.packet(sent, syn)
	quote := len(g.ip)
	if g.f.one(4) {
		quote = r.IntN(quote + 1)
	}
	b := append([]byte{3, byte(r.IntN(6)), 0, 0, 0, 0, 0, 0}, g.ip[:quote]...)
	if w.vip.Is6() {
		b[0] = 1
	}
	if g.f.one(8) {
		b[0] = byte(r.IntN(14))
	}
	if g.f.one(3) { // by a router on the way
		w.client = fuzzOuter(r.IntN(24), w.vip.Is6())
	}
	g.icmp(w, b)
}
