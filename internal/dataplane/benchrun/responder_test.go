package benchrun

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

const (
	xdpDrop     = 1
	responderIs = 0x10000000 // SERVER_ISN
)

func openResponder(t *testing.T) *Responder {
	t.Helper()
	r, err := OpenResponder()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// segment is a frame of a client at 10.127.0.1, port 40000, to 10.128.0.5, port 80.
func segment(flags byte, seq, ack uint32, options, payload string) []byte {
	frame := make([]byte, ethLen+ip4Len+tcpLen+len(options)+len(payload))
	ethernet(frame, 0x0800)
	ip := frame[ethLen:]
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	ip[8], ip[9] = ttl, protoTCP
	copy(ip[12:], []byte{10, 127, 0, 1, 10, 128, 0, 5})
	h := ip[ip4Len:]
	binary.BigEndian.PutUint16(h, 40000)
	binary.BigEndian.PutUint16(h[2:], 80)
	binary.BigEndian.PutUint32(h[4:], seq)
	binary.BigEndian.PutUint32(h[8:], ack)
	h[12], h[13] = byte((tcpLen+len(options))/4)<<4, flags
	copy(h[tcpLen:], options+payload)
	return frame
}

// answer is what the responder makes of a frame; nil: nothing.
func (r *Responder) answer(t *testing.T, frame []byte) (verdict uint32, answer []byte) {
	t.Helper()
	run := ebpf.RunOptions{Data: frame, DataOut: make([]byte, 2048), Repeat: 1}
	verdict, err := r.objects.Responder.Run(&run)
	if err != nil {
		t.Fatal(err)
	}
	return verdict, run.DataOut
}

// Every answer by its bytes, and its checksums by a sum of their own.
func TestResponderAnswers(t *testing.T) {
	r := openResponder(t)
	const request = "GET / HTTP/1.1\r\n\r\n"
	const body = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
	for _, c := range []struct {
		name           string
		frame          []byte
		verdict        uint32
		flags          byte
		seq, ack       uint32
		payload        string
		starts, wanted uint64
	}{
		{"SYN with options", segment(0x02, 0xffffffff, 0, "\x02\x04\x05\xb4\x04\x02\x01\x01", ""), xdpRedirect, 0x12, responderIs, 0, "", 1, 0},
		{"request", segment(0x18, 7, responderIs+1, "", request), xdpRedirect, 0x19, responderIs + 1, 7 + uint32(len(request)), body, 0, 1},
		{"request with a FIN", segment(0x19, 7, responderIs+1, "\x01\x01\x01\x00", request), xdpRedirect, 0x19, responderIs + 1, 8 + uint32(len(request)), body, 0, 1},
		{"FIN after nothing", segment(0x11, 9, responderIs+1, "", ""), xdpRedirect, 0x11, responderIs + 1, 10, "", 0, 0},
		{"FIN after the server's", segment(0x11, 9, responderIs+60, "", ""), xdpRedirect, 0x10, responderIs + 60, 10, "", 0, 0},
		{"ACK", segment(0x10, 9, responderIs+1, "", ""), xdpDrop, 0, 0, 0, "", 0, 0},
		{"RST", segment(0x14, 9, responderIs+1, "", ""), xdpDrop, 0, 0, 0, "", 0, 0},
		{"data without ACK", segment(0x08, 9, 0, "", request), xdpDrop, 0, 0, 0, "", 0, 0},
	} {
		if err := r.Recount(); err != nil {
			t.Fatal(err)
		}
		verdict, got := r.answer(t, c.frame)
		seen, err := r.Seen()
		if err != nil {
			t.Fatal(err)
		}
		if verdict != c.verdict || seen.Starts != c.starts || seen.Requests != c.wanted || seen.Lost != 0 || seen.Strangers != 0 {
			t.Errorf("%s: verdict %d, %d starts, %d requests: want %d, %d, %d", c.name, verdict, seen.Starts, seen.Requests, c.verdict, c.starts, c.wanted)
		}
		if c.verdict != xdpRedirect {
			continue
		}
		want := segment(c.flags, c.seq, c.ack, "", c.payload)
		copy(want[:12], append(append([]byte{}, c.frame[6:12]...), c.frame[:6]...))
		ip := want[ethLen:]
		copy(ip[12:20], []byte{10, 128, 0, 5, 10, 127, 0, 1})
		ip[6] = 0x40 // do not fragment
		binary.LittleEndian.PutUint16(ip[10:], ^uint16(storedSum(ip[:ip4Len])))
		h := ip[ip4Len:]
		binary.BigEndian.PutUint16(h, 80)
		binary.BigEndian.PutUint16(h[2:], 40000)
		binary.BigEndian.PutUint16(h[14:], 0xffff)
		pseudo := append(append([]byte{}, ip[12:20]...), 0, protoTCP, byte(len(h)>>8), byte(len(h)))
		summed := append(pseudo, h...)
		if len(summed)%2 != 0 {
			summed = append(summed, 0)
		}
		binary.LittleEndian.PutUint16(h[16:], ^uint16(storedSum(summed)))
		if string(got) != string(want) {
			t.Errorf("%s: answer\n%swant\n%s", c.name, hex.Dump(got), hex.Dump(want))
		}
	}
}

// What is not TCP over plain IPv4 goes on to the kernel.
func TestResponderPassesStrangers(t *testing.T) {
	r := openResponder(t)
	udp := segment(0x02, 1, 0, "", "")
	udp[ethLen+9] = 17
	options := segment(0x02, 1, 0, "", "")
	options[ethLen] = 0x46
	arp := segment(0x02, 1, 0, "", "")
	binary.BigEndian.PutUint16(arp[12:], 0x0806)
	for _, frame := range [][]byte{udp, options, arp} {
		if verdict, _ := r.answer(t, frame); verdict != xdpPass {
			t.Errorf("verdict %d for % x", verdict, frame[:ethLen+ip4Len])
		}
	}
	if verdict, _ := r.answer(t, segment(0x02, 1, 0, "", "")[:50]); verdict != xdpPass {
		t.Errorf("verdict %d for a short frame", verdict)
	}
	if seen, err := r.Seen(); err != nil || seen.Strangers != 3 || seen.Starts != 0 {
		t.Errorf("%+v, %v", seen.Strangers, err)
	}
}

// Starts are told from SYNs that are sent again, and those of addresses outside the targets are nobody's.
func TestResponderWatchesStarts(t *testing.T) {
	r := openResponder(t)
	first := netip.MustParseAddr("10.128.0.5")
	if err := r.Watch(first, 1, time.Hour); err != nil {
		t.Fatal(err)
	}
	for _, isn := range []uint32{1, 1, 2, 2, 2, 3} {
		r.answer(t, segment(0x02, isn, 0, "", ""))
	}
	seen, err := r.Seen()
	if err != nil || seen.Starts != 3 || seen.Again != 3 || seen.Missed != 0 || seen.Lateness[0] != 2 {
		t.Errorf("%d starts, %d again, %d missed, %d in time, %v: want 3, 3, 0, 2", seen.Starts, seen.Again, seen.Missed, seen.Lateness[0], err)
	}
	// With an interval of a nanosecond all are late, by less than the whole milliseconds since; the one that was last is overdue.
	if err := r.Watch(first, 1, 1); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r.answer(t, segment(0x02, 1, 0, "", ""))
	}
	if seen, err = r.Seen(); err != nil || seen.Starts != 3 || seen.Again != 0 || seen.Missed != 3 {
		t.Errorf("%d starts, %d again, %d missed, %v: want 3, 0, 3", seen.Starts, seen.Again, seen.Missed, err)
	}
	if err := r.Watch(first.Next(), 1, time.Hour); err != nil {
		t.Fatal(err)
	}
	r.answer(t, segment(0x02, 1, 0, "", ""))
	if seen, err = r.Seen(); err != nil || seen.Starts != 0 {
		t.Errorf("%d starts at an address that is not watched, %v", seen.Starts, err)
	}
	for within, missed := range map[time.Duration]uint64{time.Hour: 0, -time.Second: 1} {
		if err := r.Expect(within); err != nil {
			t.Fatal(err)
		}
		r.answer(t, segment(0x02, 1, 0, "", ""))
		if seen, err = r.Seen(); err != nil || seen.Starts != 1 || seen.Missed != missed {
			t.Errorf("deadline in %v: %d starts, %d missed, %v", within, seen.Starts, seen.Missed, err)
		}
	}
}

// Nearly all frames are lost with odds of nearly one, none without.
func TestResponderLoses(t *testing.T) {
	r := openResponder(t)
	if err := r.Lose(1 - 1.0/(1<<32)); err != nil {
		t.Fatal(err)
	}
	if verdict, _ := r.answer(t, segment(0x02, 1, 0, "", "")); verdict != xdpDrop {
		t.Errorf("verdict %d", verdict)
	}
	if seen, err := r.Seen(); err != nil || seen.Lost != 1 || seen.Starts != 1 {
		t.Errorf("%d lost, %d starts, %v: a lost SYN is one that was sent", seen.Lost, seen.Starts, err)
	}
}

// Servers that are gone refuse, or are silent, and those beside them serve.
func TestResponderGone(t *testing.T) {
	r := openResponder(t)
	at := netip.MustParseAddr("10.128.0.5")
	for _, c := range []struct {
		first   netip.Addr
		servers int
		silent  bool
		verdict uint32
		flags   byte
	}{
		{at, 1, false, xdpRedirect, 0x14}, {at.Prev(), 2, false, xdpRedirect, 0x14}, {at, 1, true, xdpDrop, 0},
		{at.Next(), 9, true, xdpRedirect, 0x12}, {at.Prev(), 1, false, xdpRedirect, 0x12}, {at, 0, false, xdpRedirect, 0x12},
	} {
		if err := r.Gone(c.first, c.servers, c.silent); err != nil {
			t.Fatal(err)
		}
		verdict, got := r.answer(t, segment(0x02, 7, 0, "", ""))
		if verdict != c.verdict || c.flags != 0 && got[ethLen+ip4Len+13] != c.flags {
			t.Errorf("%+v: verdict %d, %x", c, verdict, got)
		}
		if c.flags == 0x14 && binary.BigEndian.Uint32(got[ethLen+ip4Len+8:]) != 8 {
			t.Errorf("%+v: acknowledges another segment: %x", c, got)
		}
	}
	if verdict, _ := r.answer(t, segment(0x18, 7, responderIs+1, "", "GET / HTTP/1.1\r\n\r\n")); verdict != xdpRedirect {
		t.Error("a request to a server that is back is not answered")
	}
	if err := r.Gone(at, 1, false); err != nil {
		t.Fatal(err)
	}
	if verdict, _ := r.answer(t, segment(0x18, 7, responderIs+1, "", "GET / HTTP/1.1\r\n\r\n")); verdict != xdpDrop {
		t.Error("a request to a server that is gone is answered")
	}
}

func TestSeenPercentile(t *testing.T) {
	lateness := make([]uint64, 10)
	lateness[0], lateness[3], lateness[9] = 980, 15, 5
	for p, want := range map[float64]float64{0.5: 1, 0.98: 1, 0.99: 4, 0.995: 4, 0.999: 10, 1: 10} {
		if got := (Seen{Lateness: lateness}).Percentile(p); got != want {
			t.Errorf("%v: %v ms, want %v", p, got, want)
		}
	}
	if got := (Seen{Lateness: make([]uint64, 10)}).Percentile(0.99); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
