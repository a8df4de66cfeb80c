package capture

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/wire"
)

var (
	client4 = netip.MustParseAddr("198.51.100.11")
	vip4    = netip.MustParseAddr("203.0.113.10")
	client6 = netip.MustParseAddr("2001:db8:100::11")
	vip6    = netip.MustParseAddr("2001:db8:f::10")
)

func packet(src, dst netip.Addr, payload wire.Payload, extensions ...wire.Extension) []byte {
	return wire.Packet{Src: src, Dst: dst, Payload: payload, Extensions: extensions}.Frame()
}

func TestPeek(t *testing.T) {
	tcp := wire.TCP{SrcPort: 40000, DstPort: 80}
	plain := packet(client4, vip4, tcp)
	tagged := append(append(bytes.Clone(plain[:12]), 0x81, 0, 0, 7), plain[12:]...)
	gue := make([]byte, 20)
	gue[12], gue[13] = 1, 44
	follower := bytes.Clone(plain)
	follower[14+6], follower[14+7] = 0, 9
	for name, c := range map[string]struct {
		frame []byte
		want  Addressed
	}{
		"tcp":               {plain, Addressed{client4, vip4, 6, 40000, 80, -1}},
		"vlan":              {tagged, Addressed{client4, vip4, 6, 40000, 80, -1}},
		"ipv6 extension":    {packet(client6, vip6, tcp, wire.Options(60, 1)), Addressed{client6, vip6, 6, 40000, 80, -1}},
		"gue":               {packet(client4, vip4, wire.UDP{SrcPort: 50000, DstPort: 6080, Data: gue}), Addressed{client4, vip4, 17, 50000, 6080, 300}},
		"follower":          {follower, Addressed{Src: client4, Dst: vip4, Protocol: 6, Member: -1}},
		"cut before ports":  {plain[:14+20], Addressed{Src: client4, Dst: vip4, Protocol: 6, Member: -1}},
		"cut in the header": {plain[:14+19], Addressed{Member: -1}},
		"not ip":            {append(make([]byte, 12), 8, 6, 0, 0), Addressed{Member: -1}},
	} {
		if got := Peek(c.frame); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestPeekReadsAnything: Peek does not read beyond any frame.
func TestPeekReadsAnything(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		frame := rapid.SliceOfN(rapid.Byte(), 0, 120).Draw(rt, "frame")
		if len(frame) > 13 && rapid.Bool().Draw(rt, "ip") {
			copy(frame[12:], rapid.SampledFrom([][]byte{{8, 0}, {0x86, 0xdd}, {0x81, 0}}).Draw(rt, "type"))
		}
		Peek(frame)
	})
}

// sample returns a capture of two packets, one of them sent, and one lost.
func sample(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := NewWriter(&out, "mux1", 256, true)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC)
	frame := packet(client4, vip4, wire.TCP{SrcPort: 40000, DstPort: 80})
	for _, p := range []Packet{
		{Time: at, Length: 1500, Data: frame, SentLength: 1520, Sent: append(bytes.Clone(frame), 1, 2, 3), Verdict: Verdict{Verdict: "forwarded", Action: "tx", Beside: []string{"fib_fallback", "flow_moved"}, Service: "web", Endpoint: "tcp/203.0.113.10:80", Backend: "10.20.1.11:8080", Outer: "10.20.1.11"}},
		{Time: at.Add(time.Second), Length: len(frame), Data: frame, Verdict: Verdict{Verdict: "no_backend", Action: "drop"}},
	} {
		if err := w.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(3, 1); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestCaptureIsReadBack(t *testing.T) {
	var copied bytes.Buffer
	totals, err := Copy(&copied, bytes.NewReader(sample(t)))
	if err != nil || totals != (Totals{Packets: 3, Lost: 1}) {
		t.Fatalf("copy: %+v, %v", totals, err)
	}
	r, err := pcapgo.NewNgReader(&copied, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	const forwarded = "verdict=forwarded action=tx beside=fib_fallback,flow_moved service=web endpoint=tcp/203.0.113.10:80 backend=10.20.1.11:8080 outer=10.20.1.11"
	for i, want := range []struct {
		length, captured, index int
		comment                 string
	}{
		{1500, 54, 0, forwarded}, {1520, 57, 1, forwarded}, {54, 54, 0, "verdict=no_backend action=drop"},
	} {
		data, info, options, err := r.ReadPacketDataWithOptions()
		if err != nil {
			t.Fatal(err)
		}
		if len(data) != want.captured || info.Length != want.length || info.InterfaceIndex != want.index || len(options.Comments) != 1 || options.Comments[0] != want.comment {
			t.Errorf("packet %d: %d bytes, %+v, %q", i, len(data), info, options.Comments)
		}
		if i == 0 && !info.Timestamp.Equal(time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC)) {
			t.Errorf("time %v", info.Timestamp)
		}
	}
	if _, _, err := r.ReadPacketData(); err != io.EOF {
		t.Errorf("end: %v", err)
	}
}

// TestCopyKeepsWholeBlocks: wherever the input breaks off, the output is readable.
func TestCopyKeepsWholeBlocks(t *testing.T) {
	whole := sample(t)
	for n := range whole {
		var out bytes.Buffer
		totals, err := Copy(&out, bytes.NewReader(whole[:n]))
		if err == nil && out.Len() != n || err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d: %d bytes written, %v", n, out.Len(), err)
		}
		again, err := Copy(io.Discard, &out)
		if err != nil || again != totals {
			t.Fatalf("cut at %d: what was written reads as %+v, %v; want %+v", n, again, err, totals)
		}
	}
	if _, err := Copy(io.Discard, strings.NewReader("no capture at all")); err == nil {
		t.Error("text passed as a capture")
	}
}

func TestPrint(t *testing.T) {
	var out strings.Builder
	totals, err := Print(&out, bytes.NewReader(sample(t)))
	if err != nil || totals.Packets != 3 || totals.Lost != 1 {
		t.Fatalf("%+v, %v", totals, err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[2], "198.51.100.11.40000 > 203.0.113.10.80 length 54: verdict=no_backend action=drop") || !strings.Contains(lines[1], "  sent ") {
		t.Errorf("%s", &out)
	}
}
