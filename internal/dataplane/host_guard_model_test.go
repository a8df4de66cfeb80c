package dataplane

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
)

// guardAddress is an address and what it is to the guard, seen from vm0.
type guardAddress struct {
	addr string
	kind string // "own", "web", "dns", "any": what is owned of a VIP; "vip", "source", "underlay", "else", "free"
	here bool   // the route to it leads out of vm0
}

var guardAddresses = []guardAddress{
	{dip4, "own", true}, {ownedWeb4, "web", false}, {ownedDNS4, "dns", false}, {vip4, "vip", false}, {source4, "source", false},
	{narrow4, "underlay", false}, {mux4, "underlay", false}, {"10.20.1.13", "underlay", true}, {client4, "else", false}, {foreign4, "else", true},
	{"0.0.0.0", "free", false},
	{dip6, "own", true}, {ownedAny6, "any", false}, {vip6, "vip", false}, {source6, "source", false}, {mux6, "underlay", false},
	{"2001:db8:20:1::13", "underlay", true}, {client6, "else", false}, {foreign6, "else", true}, {"::", "free", false}, {"fe80::7", "free", false},
}

// guardGroups are addresses that frames may be for but not from.
var guardGroups = []guardAddress{{"224.0.0.5", "else", false}, {"255.255.255.255", "else", false}, {"ff02::1:ff00:13", "else", false}}

// guardFrame describes a frame of a server.
type guardFrame struct {
	src, dst guardAddress
	protocol layers.IPProtocol
	sport    uint16
	dport    uint16
	tags     []uint32
	fragment int // 0 none, 1 first, 2 later
	options  bool
	// headers of IPv6 before and behind that of a fragment, which is between them.
	before, behind int
}

// frame is it as bytes.
func (g *guardFrame) frame(t *testing.T) []byte {
	t.Helper()
	payload := make([]byte, 40)
	binary.BigEndian.PutUint16(payload, g.sport)
	binary.BigEndian.PutUint16(payload[2:], g.dport)
	binary.BigEndian.PutUint16(payload[4:], uint16(len(payload)))
	payload[12] = 5 << 4
	f := raw(t, g.src.addr, g.dst.addr, g.protocol, payload)
	if is4(g.src.addr) {
		if g.fragment > 0 {
			f = fragment(f, uint16(g.fragment-1), g.fragment == 1)
		}
		if g.options {
			f = optioned(f, mux4)
		}
		return tagged(f, g.tags...)
	}
	kinds := slices.Repeat([]byte{60}, g.before)
	if g.fragment > 0 {
		kinds = append(kinds, 44)
	}
	f = extended(f, append(kinds, slices.Repeat([]byte{60}, g.behind)...)...)
	if g.fragment > 0 {
		f[54+8*g.before+3] = []byte{1, 8}[g.fragment-1]
	}
	return tagged(f, g.tags...)
}

// judge is what the guard has to count, "" for what goes on: worked out from what the frame is, not from its bytes.
func (g *guardFrame) judge(mode HostGuard) string {
	away := false
	for _, tag := range g.tags {
		away = away || tag&0xfff != 0
	}
	if len(g.tags) > 4 {
		return "sent_malformed"
	}
	if mode == GuardOff {
		return ""
	}
	six, headers, protocol := !is4(g.src.addr), g.before+g.behind, g.protocol
	if six && g.fragment > 0 {
		headers++
	}
	if six && g.fragment == 2 {
		headers = g.before + 1
		if g.behind > 0 {
			protocol = layers.IPProtocolIPv6Destination
		}
	}
	hidden := six && headers > 6
	if !away {
		if reason := g.judgeSource(mode, protocol, hidden); reason != "" {
			return reason
		}
	}
	tunnel := protocol == layers.IPProtocolIPv4 || protocol == layers.IPProtocolIPv6 || protocol == layers.IPProtocolGRE ||
		protocol == layers.IPProtocolUDP && g.fragment < 2 && g.dport == 6080
	toUnderlay := g.dst.kind == "own" || g.dst.kind == "underlay" || g.dst.kind == "source"
	switch {
	case hidden && toUnderlay:
		return "sent_malformed"
	case hidden || !tunnel:
		return ""
	case toUnderlay || !six && g.options:
		return "sent_tunnel"
	}
	return ""
}

func (g *guardFrame) judgeSource(mode HostGuard, protocol layers.IPProtocol, hidden bool) string {
	tcp, udp := protocol == layers.IPProtocolTCP, protocol == layers.IPProtocolUDP
	follows := !hidden && (g.fragment == 2 || protocol == layers.IPProtocolICMPv4 && is4(g.src.addr) || protocol == layers.IPProtocolICMPv6 && !is4(g.src.addr))
	owned := false
	switch g.src.kind {
	case "own", "free":
		return ""
	case "web":
		owned = follows || tcp && g.sport == 80
	case "dns":
		owned = follows || udp
	case "any":
		owned = !hidden
	case "source":
		return "sent_bad_source"
	case "underlay":
		if g.src.here {
			return ""
		}
		return "sent_bad_source"
	case "else":
		if g.src.here || mode != GuardStrict {
			return ""
		}
		return "sent_bad_source"
	}
	if owned {
		return ""
	}
	return "sent_vip_source"
}

// TestHostGuardAgainstAModel: random frames, of all that a server may try, are judged as by a model that knows what they are.
func TestHostGuardAgainstAModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	e := newHostEnv(t).quiet()
	for _, a := range guardAddresses {
		if a.here && a.kind != "own" {
			e.route(a.addr, "vm0")
		}
	}
	pick := func(six bool, among []guardAddress) guardAddress {
		for {
			if a := among[r.IntN(len(among))]; is4(a.addr) != six {
				return a
			}
		}
	}
	protocols := []layers.IPProtocol{
		layers.IPProtocolTCP, layers.IPProtocolUDP, layers.IPProtocolUDP, layers.IPProtocolIPv4, layers.IPProtocolIPv6, layers.IPProtocolGRE,
		layers.IPProtocolSCTP, layers.IPProtocolICMPv4, layers.IPProtocolICMPv6,
	}
	tags := []uint32{0x8100_0000, 0x8100_e000, 0x88a8_0000, 0x8100_0064, 0x88a8_0fff}
	met := map[string]int{}
	for _, mode := range []HostGuard{GuardNetworks, GuardStrict, GuardOff} {
		e.guarded(mode)
		for range 1500 {
			six := r.IntN(2) == 0
			g := &guardFrame{
				src: pick(six, guardAddresses), dst: pick(six, slices.Concat(guardAddresses, guardGroups)), protocol: protocols[r.IntN(len(protocols))], sport: []uint16{80, 53, 6080}[r.IntN(3)],
				dport: []uint16{6080, 6081, 80}[r.IntN(3)], fragment: max(0, r.IntN(6)-3), options: r.IntN(6) == 0,
			}
			if r.IntN(3) == 0 {
				g.before, g.behind = r.IntN(5), r.IntN(5)
			}
			if r.IntN(3) == 0 {
				for range r.IntN(6) {
					g.tags = append(g.tags, tags[r.IntN(len(tags))])
				}
			}
			want := g.judge(mode)
			met[want]++
			name := fmt.Sprintf("seed %d, mode %d: %+v", seed, mode, *g)
			if want == "" {
				e.sent(name, "vm0", g.frame(t), verdictNext)
			} else {
				e.sent(name, "vm0", g.frame(t), verdictDrop, want)
			}
			if t.Failed() {
				return
			}
		}
	}
	t.Logf("judged %v", met)
	for _, reason := range []string{"", "sent_malformed", "sent_bad_source", "sent_vip_source", "sent_tunnel"} {
		if met[reason] < 50 {
			t.Errorf("%q was met %d times: the frames say little", reason, met[reason])
		}
	}
}
