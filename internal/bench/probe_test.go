package bench

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

func TestLanes(t *testing.T) {
	l, start := newLanes(2), time.Unix(1000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	l.answer(0, at(10))
	if _, ok := l.all(); ok {
		t.Error("all lanes were answered with one of two")
	}
	l.answer(0, at(15))
	l.answer(0, at(45))
	l.answer(1, at(50))
	if when, ok := l.all(); !ok || when != at(50) {
		t.Errorf("all lanes were answered: %v at %v, want true at %v", ok, when, at(50))
	}
	l.answer(0, at(50))
	for _, c := range []struct{ now, want int }{{55, 30}, {100, 50}} {
		if got, want := l.longest(start, at(c.now)), time.Duration(c.want)*time.Millisecond; got != want {
			t.Errorf("longest gap at %d ms is %v, want %v", c.now, got, want)
		}
	}
	if got := newLanes(1).longest(start, at(70)); got != 70*time.Millisecond {
		t.Errorf("a lane that was never answered has a gap of %v, want 70 ms", got)
	}
}

// An independent library decodes the segment and its checksum.
func TestSYN(t *testing.T) {
	source, target := netip.MustParseAddr("198.51.100.11"), netip.MustParseAddrPort("203.0.113.10:80")
	p := &prober{source: source, target: target, ports: lanePorts(3), lanes: newLanes(3)}
	segment := p.syn(2)
	ip := &layers.IPv4{Version: 4, Protocol: layers.IPProtocolTCP, SrcIP: source.AsSlice(), DstIP: target.Addr().AsSlice()}
	packet := gopacket.NewPacket(segment, layers.LayerTypeTCP, gopacket.Default)
	tcp, ok := packet.Layer(layers.LayerTypeTCP).(*layers.TCP)
	if !ok {
		t.Fatalf("segment % x is not TCP", segment)
	}
	if !tcp.SYN || tcp.ACK || tcp.SrcPort != firstLanePort+2 || tcp.DstPort != 80 || len(tcp.Options) != 1 {
		t.Errorf("segment is %+v", tcp)
	}
	if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	got := tcp.Checksum
	buffer := gopacket.NewSerializeBuffer()
	if err := tcp.SerializeTo(buffer, gopacket.SerializeOptions{ComputeChecksums: true}); err != nil {
		t.Fatal(err)
	}
	if got != tcp.Checksum {
		t.Errorf("checksum is %#x, want %#x", got, tcp.Checksum)
	}
}

func TestLaneOf(t *testing.T) {
	p := &prober{target: netip.MustParseAddrPort("203.0.113.10:80"), ports: lanePorts(3), lanes: newLanes(3)}
	answer := func(source, destination uint16, flags byte) []byte {
		s := make([]byte, tcpHeaderLen)
		s[0], s[1], s[2], s[3], s[13] = byte(source>>8), byte(source), byte(destination>>8), byte(destination), flags
		return s
	}
	for _, c := range []struct {
		name    string
		segment []byte
		ok      bool
	}{
		{"SYN-ACK of lane 1", answer(80, firstLanePort+1, tcpSYN|tcpACK), true},
		{"SYN only", answer(80, firstLanePort+1, tcpSYN), false},
		{"other port", answer(81, firstLanePort+1, tcpSYN|tcpACK), false},
		{"lane too high", answer(80, firstLanePort+3, tcpSYN|tcpACK), false},
		{"lane too low", answer(80, firstLanePort-1, tcpSYN|tcpACK), false},
		{"truncated", answer(80, firstLanePort+1, tcpSYN|tcpACK)[:tcpHeaderLen-1], false},
	} {
		if lane, ok := p.laneOf(c.segment); ok != c.ok || ok && lane != 1 {
			t.Errorf("%s: lane %d, %v", c.name, lane, ok)
		}
	}
}

func TestLoadCountsAnswers(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("host1-vm1\n")) }))
	defer server.Close()
	for _, reconnect := range []bool{false, true} {
		l := load{
			dial: (&net.Dialer{}).DialContext, address: strings.TrimPrefix(server.URL, "http://"),
			connections: 2, duration: 50 * time.Millisecond, reconnect: reconnect,
		}
		result, err := l.run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(result.Latency) == 0 || result.RPS <= 0 || result.Failures != 0 {
			t.Errorf("reconnect %v: %d answers, %v requests/s, %d failures", reconnect, len(result.Latency), result.RPS, result.Failures)
		}
	}
}

func TestLoadWithoutServer(t *testing.T) {
	refuse := func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }
	l := load{dial: refuse, address: "203.0.113.10:80", connections: 1, duration: 10 * time.Millisecond}
	if _, err := l.run(t.Context()); err == nil || !strings.Contains(err.Error(), "no request was answered") {
		t.Errorf("error is %v", err)
	}
}

// A response that no server of the lab sends is an error, not a successful request.
func TestGetRefusesOddAnswers(t *testing.T) {
	for name, answer := range map[string]string{
		"status":     "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
		"no length":  "HTTP/1.1 200 OK\r\n\r\n",
		"bad length": "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"cut short":  "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
		"nothing":    "",
	} {
		near, far := net.Pipe()
		go func() {
			far.Read(make([]byte, 512))
			far.Write([]byte(answer))
			far.Close()
		}()
		c := &client{conn: near, reader: bufio.NewReader(near), request: []byte("GET / HTTP/1.1\r\n\r\n")}
		if err := c.get(); err == nil {
			t.Errorf("%s: no error", name)
		}
		c.close()
	}
}
