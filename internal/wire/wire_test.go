package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// TestChecksumExample is the example of RFC 1071 section 3.
func TestChecksumExample(t *testing.T) {
	if got := Sum([]byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}); got != 0xddf2 {
		t.Errorf("got %#x, want 0xddf2", got)
	}
	if got := Sum([]byte{0xff}); got != 0xff00 {
		t.Errorf("an odd byte: got %#x, want 0xff00", got)
	}
}

// TestKnownFrame compares with a DNS query's bytes written by hand.
func TestKnownFrame(t *testing.T) {
	p := Packet{
		DstMAC: [6]byte{2, 0, 0, 0, 0, 1}, SrcMAC: [6]byte{2, 0, 0, 0, 0, 2},
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), ID: 0x1234, Flags: 0x4000,
		Payload: UDP{SrcPort: 0x3039, DstPort: 53, Data: []byte{0xab}}, Padding: 2,
	}
	want := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0,
		0x45, 0, 0, 29, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2,
		0x30, 0x39, 0, 53, 0, 9, 0, 0, 0xab, 0, 0}
	got := p.Frame()
	if !bytes.Equal(got[:24], want[:24]) || !bytes.Equal(got[26:40], want[26:40]) || len(got) != len(want) {
		t.Fatalf("got  %x\nwant %x", got, want)
	}
	// The two checksums: all 16-bit values of the header, and of pseudo header and datagram, sum to
	// ffff.
	if Sum(got[14:34]) != 0xffff || Sum(append(PseudoHeader(p.Src, p.Dst, ProtoUDP, 9), got[34:43]...)) != 0xffff {
		t.Fatalf("checksums: %x", got)
	}
}

func drawPacket(t *rapid.T) Packet {
	p := Packet{
		TOS: rapid.Uint8().Draw(t, "tos"), TTL: rapid.Uint8Range(1, 255).Draw(t, "ttl"),
		Padding: rapid.IntRange(0, 8).Draw(t, "padding"),
	}
	data := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "data")
	sport, dport := rapid.Uint16().Draw(t, "sport"), rapid.Uint16().Draw(t, "dport")
	if rapid.Bool().Draw(t, "v6") {
		p.Src = netip.AddrFrom16([16]byte(append([]byte{0x20}, rapid.SliceOfN(rapid.Byte(), 15, 15).Draw(t, "src")...)))
		p.Dst = p.Src.Next()
		p.FlowLabel = rapid.Uint32Range(0, 1<<20-1).Draw(t, "label")
		for range rapid.IntRange(0, 3).Draw(t, "extensions") {
			p.Extensions = append(p.Extensions, Options(ProtoDstOpts, rapid.IntRange(1, 4).Draw(t, "words")))
		}
	} else {
		p.Src = netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "src")))
		p.Dst = netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "dst")))
		p.ID = rapid.Uint16().Draw(t, "id")
	}
	switch rapid.IntRange(0, 2).Draw(t, "payload") {
	case 0:
		p.Payload = TCP{SrcPort: sport, DstPort: dport, Flags: SYN, Options: data[:len(data)/2], Data: data}
	case 1:
		p.Payload = UDP{SrcPort: sport, DstPort: dport, Data: data}
	default:
		p.Payload = Echo{ID: sport, Seq: dport, Data: data}
	}
	return p
}

func TestParseInvertsBuild(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPacket(t)
		h, err := ParseFrame(p.Frame())
		if err != nil {
			t.Fatal(err)
		}
		if h.Src != p.Src || h.Dst != p.Dst || h.TOS != p.TOS || h.TTL != p.TTL || h.ID != p.ID || h.FlowLabel != p.FlowLabel ||
			len(h.Extensions) != len(p.Extensions) || h.Protocol != p.Payload.Protocol(p.Dst.Is6()) {
			t.Fatalf("built %+v, read %+v", p, h)
		}
		if len(h.ChecksumErrors) > 0 {
			t.Fatalf("wrong checksums: %v", h.ChecksumErrors)
		}
		if !bytes.Equal(h.Payload, p.Payload.Bytes(p.Src, p.Dst)) {
			t.Fatalf("payload %x, built %x", h.Payload, p.Payload.Bytes(p.Src, p.Dst))
		}
	})
}

func TestParseRefuses(t *testing.T) {
	good := func() []byte {
		return Packet{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), Payload: UDP{1, 2, []byte("x")}}.Frame()
	}
	for name, change := range map[string]func(b []byte) []byte{
		"no frame":      func(b []byte) []byte { return b[:10] },
		"no header":     func(b []byte) []byte { return b[:14] },
		"half a header": func(b []byte) []byte { return b[:30] },
		"ARP":           func(b []byte) []byte { binary.BigEndian.PutUint16(b[12:], 0x0806); return b },
		"version 5":     func(b []byte) []byte { b[14] = 0x55; return b },
		"IHL 4":         func(b []byte) []byte { b[14] = 0x44; return b },
		"lying length":  func(b []byte) []byte { b[17] = 200; return b },
		"UDP length":    func(b []byte) []byte { b[39] = 200; return b },
	} {
		if h, err := ParseFrame(change(good())); err == nil {
			t.Errorf("%s: read as %+v", name, h)
		}
	}
	if _, err := ParseFrame(good()[:20]); !errors.Is(err, ErrTruncated) {
		t.Errorf("got %v, expected %v", err, ErrTruncated)
	}
}

// FuzzParse: for any input Parse neither panics nor reads beyond the packet.
func FuzzParse(f *testing.F) {
	v4 := Packet{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), Payload: TCP{SrcPort: 1, DstPort: 2, Options: []byte{1, 1, 8}}}
	v6 := Packet{Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db8::2"), Payload: Echo{ID: 1},
		Extensions: []Extension{Options(ProtoHopByHop, 1), Options(ProtoDstOpts, 2)}}
	f.Add(v4.IP())
	f.Add(v6.IP())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := Parse(b)
		if err == nil && (len(h.Packet) > len(b) || len(h.Payload) > len(h.Packet)) {
			t.Fatalf("%d bytes read as %+v", len(b), h)
		}
	})
}
