package dataplane

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/wire"
)

// natTalk is a TCP connection, whose numbers count from the first of each side.
type natTalk struct {
	f           *natFixture
	flow        natFlow
	lip, server netip.AddrPort
	isn         [2]uint32 // of the client, of the server
}

// The numbers of a talk go round soon.
var natISNs = [2]uint32{0xfffffff8, 0x7ffffffa}

// talk is a connection from a port, to the first VIP of tcp.
func (f *natFixture) talk(v6 bool, from uint16) *natTalk {
	src, dst, _, _ := endsOf(natPacket(v6, false, from, 0))
	return &natTalk{f: f, flow: natFlow{src, dst, 6}, isn: natISNs}
}

// segment is one from a side.
func (c *natTalk) segment(server bool, flags uint8, seq, ack, n int) wire.Packet {
	us, them := c.isn[0], c.isn[1]
	p := natPacket(c.flow.client.Addr().Is6(), false, c.flow.client.Port(), flags)
	if server {
		us, them = them, us
	}
	l4 := p.Payload.(wire.TCP)
	l4.Flags, l4.Seq, l4.Ack, l4.Data = flags, us+uint32(seq), 0, make([]byte, n)
	if flags&wire.ACK != 0 {
		l4.Ack = them + uint32(ack)
	}
	if server {
		p.Src, p.Dst, l4.SrcPort, l4.DstPort = c.server.Addr(), c.lip.Addr(), c.server.Port(), c.lip.Port()
	}
	p.Payload = l4
	return p
}

// says gives the mux a segment of the client, or of the server.
func (c *natTalk) says(server bool, flags uint8, seq, ack, n int) natWant {
	c.f.t.Helper()
	if server {
		return c.f.out(c.segment(true, flags, seq, ack, n))
	}
	want := c.f.in(c.segment(false, flags, seq, ack, n))
	if want.packet != nil {
		c.lip, c.server, _, _ = endsOf(*want.packet)
	}
	return want
}

// shake is a handshake.
func (c *natTalk) shake() {
	c.f.t.Helper()
	c.says(false, wire.SYN, 0, 0, 0)
	c.says(true, wire.SYN|wire.ACK, 0, 1, 0)
	c.says(false, wire.ACK, 1, 1, 0)
}

// class is what the mux knows of it; empty: nothing.
func (c *natTalk) class() string {
	s, ok := c.f.sessionOf(c.flow)
	if !ok {
		return ""
	}
	return s.class().String()
}

// letters are TCP flags.
var letters = map[rune]uint8{'S': wire.SYN, 'A': wire.ACK, 'F': wire.FIN, 'R': wire.RST, 'P': wire.PSH}

// play plays a story: lines of side (> the client, < the server), flags, number, acknowledgement and octets, and what the mux thinks of the
// connection afterwards, if that is said. A line "= n" makes the numbers of the client count from another first one, "~ n" those of the server.
func (c *natTalk) play(story string) {
	c.f.t.Helper()
	for line := range strings.Lines(story) {
		line = strings.TrimSpace(line)
		var (
			side, flags, class string
			seq, ack, n        int
			bits               uint8
		)
		switch fields, _ := fmt.Sscan(line, &side, &flags, &seq, &ack, &n, &class); {
		case line == "":
			continue
		case side == "=" || side == "~":
			if _, err := fmt.Sscan(flags, &n); err != nil {
				c.f.t.Fatalf("%s: %v", line, err)
			}
			c.isn[strings.Index("=~", side)] += uint32(n)
			continue
		case fields < 5:
			c.f.t.Fatalf("%s: a line has five fields or six", line)
		}
		for _, letter := range flags {
			bits |= letters[letter]
		}
		c.says(side == "<", bits, seq, ack, n)
		if class != "" && c.class() != class {
			c.f.t.Fatalf("%s: the mux thinks it is %s", line, c.class())
		}
	}
}

// eachFamily runs a test for both.
func eachFamily(t *testing.T, test func(t *testing.T, v6 bool)) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("v6 %v", v6), func(t *testing.T) { test(t, v6) })
	}
}
