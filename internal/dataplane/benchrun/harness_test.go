package benchrun

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/cookie"
)

// frameAddresses reads the addresses and ports of an unencapsulated frame.
func frameAddresses(frame []byte) (client, vip netip.Addr, source, destination uint16) {
	ip := frame[ethLen:]
	ports := ip[ip6Len:]
	if ip[0]>>4 == 4 {
		client, vip = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
		ports = ip[ip4Len:]
	} else {
		client, vip = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
	}
	return client, vip, binary.BigEndian.Uint16(ports), binary.BigEndian.Uint16(ports[2:])
}

func open(t *testing.T, traffic Traffic) *Harness {
	t.Helper()
	h, err := Open(traffic, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// The front program writes the flow that packet describes, with a right header checksum.
func TestFrontWritesTheFlow(t *testing.T) {
	for _, family := range []Family{IPv4, IPv6} {
		h := open(t, Traffic{Family: family, Flows: 1 << 20, VIPs: 20000})
		for _, flow := range []uint32{0, 1, 0x1ffff, 0x20000, 0xfffff, 1<<32 - 1} {
			run, err := h.One(h.Null(), flow)
			if err != nil {
				t.Fatal(err)
			}
			want := h.traffic.packet(flow)
			client, vip, source, destination := frameAddresses(run.Frame)
			if client != want.Client || vip != want.VIP || source != want.ClientPort || destination != want.Port {
				t.Errorf("flow %d: frame has %s:%d to %s:%d, want %+v", flow, client, source, vip, destination, want)
			}
			if family == IPv4 && storedSum(run.Frame[ethLen:ethLen+ip4Len]) != 0xffff {
				t.Errorf("flow %d: bad header checksum: % x", flow, run.Frame)
			}
		}
	}
}

// The front program writes the cookie that echo describes, behind two NOPs, and the floor sends it on.
func TestFrontWritesTheCookie(t *testing.T) {
	for _, family := range []Family{IPv4, IPv6} {
		h := open(t, Traffic{Family: family, Flows: 1 << 20, VIPs: 20000, CookieMembers: 100})
		seen := map[uint16]bool{}
		for _, flow := range []uint32{0, 1, 0x1ffff, 0x20000, 0xfffff, 1<<32 - 1} {
			run, err := h.One(h.Null(), flow)
			if err != nil {
				t.Fatal(err)
			}
			tcp := run.Frame[family.flagsAt()-tcpFlags:]
			if len(tcp) != tcpLen+timestampsLen || tcp[12] != 8<<4 || !bytes.Equal(tcp[tcpLen:][:4], []byte{1, 1, 8, 10}) {
				t.Fatalf("flow %d: segment % x", flow, tcp)
			}
			echo := binary.BigEndian.Uint32(tcp[tcpLen+8:])
			if want := h.traffic.packet(flow); echo != want.Echo {
				t.Errorf("flow %d: echo %#x, want %#x", flow, echo, want.Echo)
			}
			prf := cookie.PRF(CookieKey, cookie.Flow{
				Client: netip.AddrPortFrom(run.Last.Client, run.Last.ClientPort), VIP: netip.AddrPortFrom(run.Last.VIP, Port),
			})
			id, ok := cookie.Decode(prf, uint16(cookie.HostBits.Cookie(echo)), cookie.SecretOf(CookieKey))
			if !ok || id >= 100 {
				t.Errorf("flow %d: the echo names member %d, %v", flow, id, ok)
			}
			seen[id] = true
			run, err = h.One(h.Floor(), flow)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := run.Outer(family); err != nil {
				t.Error(err)
			}
		}
		if len(seen) < 4 {
			t.Errorf("six flows are of members %v", seen)
		}
	}
}

// The floor puts a complete outer header before the packet, and every repeat starts from the packet without it.
func TestFloorEncapsulatesOnce(t *testing.T) {
	for _, family := range []Family{IPv4, IPv6} {
		h := open(t, Traffic{Family: family, Flows: 1000, VIPs: 1})
		run, err := h.Run(h.Floor(), 3*stampPackets-1, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run.Outer(family); err != nil {
			t.Errorf("IPv%d: %v", family, err)
		}
		header := ip4Len
		if family == IPv6 {
			header = ip6Len
		}
		client, vip, _, _ := frameAddresses(append(make([]byte, ethLen), run.Frame[ethLen+header:]...))
		if client != run.Last.Client || vip != run.Last.VIP {
			t.Errorf("IPv%d: inner packet is %s to %s, want %+v", family, client, vip, run.Last)
		}
		if want := 3 * stampPackets; run.Packets < uint64(want) || len(run.Stretches) != 3 {
			t.Errorf("IPv%d: %d packets in %d stretches, want at least %d in 3", family, run.Packets, len(run.Stretches), want)
		}
		if !bytes.Equal(run.Frame[:ethLen-2], []byte{0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2}) {
			t.Errorf("IPv%d: MACs % x", family, run.Frame[:ethLen-2])
		}
	}
}

// Warm sends every flow twice, one after the other; then traffic of new flows goes on counting, with SYN.
func TestWarmThenNew(t *testing.T) {
	for _, family := range []Family{IPv4, IPv6} {
		h := open(t, Traffic{Family: family, Flows: 100, VIPs: 1, New: true})
		if packets, err := h.Warm(h.Null()); err != nil || packets != 200 {
			t.Errorf("IPv%d: warmed with %d packets (%v), want 200", family, packets, err)
		}
		first := h.fresh
		run, err := h.Run(h.Null(), stampPackets, 1)
		if err != nil {
			t.Fatal(err)
		}
		if want := h.traffic.packet(first + uint32(run.Packets) - 1); first != 100 || !reflect.DeepEqual(run.Last, want) {
			t.Errorf("IPv%d: began at flow %d, ended with %+v, want 100 and %+v", family, first, run.Last, want)
		}
		if flags := run.Frame[family.flagsAt()]; flags != tcpSYN {
			t.Errorf("IPv%d: flags %#x, want SYN", family, flags)
		}
	}
}

// Compare gives every target its turns in every round.
func TestCompareCounts(t *testing.T) {
	h := open(t, Traffic{Family: IPv4, Flows: 16, VIPs: 1})
	var seen []int
	effort := Effort{Rounds: 4, Packets: 8 * stampPackets, Turns: 2}
	c, err := h.Compare(t.Context(), []Target{h.Floor(), h.Null()}, effort, func(i int) { seen = append(seen, i) })
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Rounds) != 4 || len(seen) != 4 || c.Packets[0] < 4*8*stampPackets || c.Packets[1] < 4*8*stampPackets {
		t.Errorf("%d rounds, %d announced, %d packets", len(c.Rounds), len(seen), c.Packets)
	}
	for _, r := range c.Rounds {
		if r.Null <= 0 || r.Floor <= 0 || len(r.Programs) != 2 || r.Programs[0] <= 0 || r.Programs[1] <= 0 {
			t.Errorf("round without time: %+v", r)
		}
	}
}

func TestRunRefusesPackets(t *testing.T) {
	h := open(t, Traffic{Family: IPv4, Flows: 1, VIPs: 1})
	for _, n := range []int{0, -1, MaxPackets + 1} {
		if _, err := h.Run(h.Floor(), n, 1); err == nil {
			t.Errorf("%d packets: no error", n)
		}
	}
}

// Two flows below 2^32 never share client address and port: the map is a bijection onto 17 + 15 bits.
func TestFlowsAreDistinct(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Uint32().Draw(t, "a"), rapid.Uint32().Draw(t, "b")
		x, y := flowIDsOf(a, 1), flowIDsOf(b, 1)
		if a != b && x.client == y.client && x.port == y.port {
			t.Fatalf("flows %d and %d are the same: %+v", a, b, x)
		}
	})
	seen := map[uint64]bool{}
	for n := range uint32(1 << 20) {
		ids := flowIDsOf(n, 20000)
		key := uint64(ids.client)<<16 | uint64(ids.port)
		if seen[key] || ids.vip >= 20000 || ids.port < 1024 {
			t.Fatalf("flow %d: %+v", n, ids)
		}
		seen[key] = true
	}
}

func TestMiddle(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{4, 2}, 3}, {[]float64{9, 1, 2}, 2}} {
		if got := (Run{Stretches: c.in}).Middle(); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.in, got, c.want)
		}
	}
}
