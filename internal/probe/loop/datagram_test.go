package loop

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// serveUDP passes datagrams to f, which returns the answers.
func serveUDP(t *testing.T, on string, f func([]byte) [][]byte) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", on)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			for _, answer := range f(b[:n]) {
				_, _ = c.WriteTo(answer, from)
			}
		}
	}()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// closedUDP returns a loopback address without a listener.
func closedUDP(t *testing.T, on string) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", on)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestWordsOfDatagrams(t *testing.T) {
	r := newRig(t, Options{Loops: 1})
	udp := func(timeout time.Duration, expect string) lb.Check {
		return check(lb.CheckUDP, timeout, func(c *lb.Check) { c.Send, c.Expect = "PING", expect })
	}
	bytes := func(send, expect string) lb.Check {
		return check(lb.CheckUDP, long, func(c *lb.Check) { c.SendHex, c.ExpectHex = send, expect })
	}
	knows := serveUDP(t, "127.0.0.1:0", func(b []byte) [][]byte {
		if string(b) != "\x00\xff\x80" {
			return [][]byte{b}
		}
		return [][]byte{[]byte("\x01\xff\xfe\x00\x01")}
	})
	echoes := func(b []byte) [][]byte {
		if string(b) != "PING" {
			return nil
		}
		// A second answer matches no request, and must not affect later probes.
		return [][]byte{[]byte("a PONG b"), []byte("stray")}
	}
	const local, local6 = "127.0.0.1:0", "[::1]:0"
	server := serveUDP(t, local, echoes)
	r.compare([]wordsCase{
		{"answers", of(udp(long, ""), server), probe.Good, false, "answered"},
		{"answers as expected", of(udp(long, "PONG"), server), probe.Good, false, "answered"},
		{"answers over IPv6", of(udp(long, "PONG"), serveUDP(t, local6, echoes)), probe.Good, false, "answered"},
		{"answers bytes that are no text", of(bytes("00ff80", "fffe0001"), knows), probe.Good, false, "answered"},
		{"answers other bytes", of(bytes("00ff81", "fffe0001"), knows), probe.Bad, false, `the answer has no "\xff\xfe\x00\x01"`},
		{"answers otherwise", of(udp(long, "GONG"), server), probe.Bad, false, `the answer has no "GONG"`},
		{"says nothing", of(udp(short, ""), serveUDP(t, local, func([]byte) [][]byte { return nil })), probe.Bad, true, "no answer within 50 ms"},
		{"is closed", of(udp(long, ""), closedUDP(t, local)), probe.Bad, false, "port unreachable"},
		{"is closed over IPv6", of(udp(long, ""), closedUDP(t, local6)), probe.Bad, false, "port unreachable"},
	})
}

// names is a DNS server for one name with a few records.
func names(b []byte) [][]byte {
	var m dnsmessage.Message
	if m.Unpack(b) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	header := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 1}
	m.Response = true
	add := func(body dnsmessage.ResourceBody) {
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: body})
	}
	name := dnsmessage.MustNewName
	switch q.Name.String() + strings.TrimPrefix(q.Type.String(), "Type") {
	case "www.example.com.A":
		add(&dnsmessage.CNAMEResource{CNAME: name("other.example.com.")})
		add(&dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}})
		add(&dnsmessage.AResource{A: [4]byte{192, 0, 2, 2}})
	case "www.example.com.AAAA":
		add(&dnsmessage.AAAAResource{AAAA: netip.MustParseAddr("2001:db8::1").As16()})
	case "www.example.com.TXT":
		add(&dnsmessage.TXTResource{TXT: []string{"a b", "c"}})
	case "www.example.com.MX":
		add(&dnsmessage.MXResource{Pref: 10, MX: name("Mail.example.com.")})
	case "www.example.com.SRV":
		add(&dnsmessage.SRVResource{Priority: 1, Weight: 2, Port: 443, Target: name("a.example.com.")})
	case "www.example.com.NS":
		add(&dnsmessage.NSResource{NS: name("ns.example.com.")})
	case "www.example.com.SOA":
		add(&dnsmessage.SOAResource{NS: name("ns.example.com."), MBox: name("m.example.com."), Serial: 1, Refresh: 2, Retry: 3, Expire: 4, MinTTL: 5})
	case "1.2.0.192.in-addr.arpa.PTR":
		add(&dnsmessage.PTRResource{PTR: name("www.example.com.")})
	case "alias.example.com.CNAME":
		add(&dnsmessage.CNAMEResource{CNAME: name("www.example.com.")})
	case "www.example.com.257":
		add(&dnsmessage.UnknownResource{Type: typeCAA, Data: append([]byte{0, 5}, "issueca.example"...)})
	case "long.example.com.257":
		// The longest tags possible: their length plus the bytes before them exceeds a byte.
		for _, length := range []byte{254, 255} {
			add(&dnsmessage.UnknownResource{Type: typeCAA, Data: append([]byte{0, length}, strings.Repeat("t", 300)...)})
		}
	case "empty.example.com.A":
	case "refused.example.com.A":
		m.RCode = dnsmessage.RCodeRefused
	case "broken.example.com.A":
		m.RCode = dnsmessage.RCodeServerFailure
	case "odd.example.com.A":
		m.RCode = 14
	case "big.example.com.A":
		m.Truncated = true
	case "lie.example.com.A":
		m.Questions[0].Name = name("www.example.com.")
		add(&dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}})
	default:
		m.RCode = dnsmessage.RCodeNameError
	}
	answer, err := m.Pack()
	if err != nil {
		return nil
	}
	// The answer follows datagrams with wrong guesses.
	guess, mirrored := append([]byte(nil), answer...), append([]byte(nil), b...)
	guess[0] ^= 0xff
	return [][]byte{[]byte("x"), guess, mirrored, answer}
}

func TestWordsOfNameServers(t *testing.T) {
	r := newRig(t, Options{Loops: 1})
	server := serveUDP(t, "127.0.0.1:0", names)
	ask := func(timeout time.Duration, name, kind, answer string) probe.Target {
		return of(check(lb.CheckDNS, timeout, func(c *lb.Check) { c.Name, c.Type, c.Answer = name, kind, answer }), server)
	}
	const www = "www.example.com"
	var cases []wordsCase
	for _, c := range [][3]string{
		{www, "A", ""}, {www + ".", "A", "192.0.2.2"}, {www, "AAAA", "2001:db8:0::1"}, {www, "TXT", "a bc"}, {www, "MX", "10 mail.example.com"},
		{www, "SRV", "1 2 443 a.example.com."}, {www, "NS", "ns.example.com"}, {www, "SOA", "ns.example.com m.example.com 1 2 3 4 5"},
		{"1.2.0.192.in-addr.arpa", "PTR", www}, {"alias.example.com", "CNAME", "WWW.example.com."}, {www, "CAA", `0 issue "ca.example"`},
	} {
		cases = append(cases, wordsCase{c[1] + " " + c[2], ask(long, c[0], c[1], c[2]), probe.Good, false, "answered"})
	}
	for _, c := range []struct{ name, kind, answer, words string }{
		{www, "A", "192.0.2.3", `no A record is "192.0.2.3"`}, {www, "MX", "20 mail.example.com", `no MX record is "20 mail.example.com"`},
		{www, "CAA", `0 issue "b.example"`, `no CAA record is "0 issue \"b.example\""`},
		{"long.example.com", "CAA", "0 t", `no CAA record is "0 t"`},
		{"empty.example.com", "A", "", "no A record"}, {"none.example.com", "A", "", "NXDOMAIN"}, {"refused.example.com", "A", "", "REFUSED"},
		{"broken.example.com", "A", "", "SERVFAIL"}, {"odd.example.com", "A", "", "RCODE 14"}, {"big.example.com", "A", "", "the answer does not fit a datagram"},
	} {
		cases = append(cases, wordsCase{c.name + " " + c.answer, ask(long, c.name, c.kind, c.answer), probe.Bad, false, c.words})
	}
	cases = append(cases, wordsCase{"lies", ask(short, "lie.example.com", "A", ""), probe.Bad, true, "no answer within 50 ms"},
		wordsCase{"is closed", of(check(lb.CheckDNS, long, func(c *lb.Check) { c.Name, c.Type = www, "A" }), closedUDP(t, "127.0.0.1:0")), probe.Bad, false, "port unreachable"})
	r.compare(cases)
	if err := r.Add(99_999, ask(long, www, "LOC", "")); err == nil {
		t.Error("a type is taken that is not known")
	}
}

func TestEchoesAreAnswered(t *testing.T) {
	r := newRig(t, Options{})
	icmp := check(lb.CheckICMP, long, nil)
	r.compare([]wordsCase{
		{"IPv4", probe.Of(icmp, netip.MustParseAddr("127.0.0.1"), 0), probe.Good, false, "answered"},
		{"IPv6", probe.Of(icmp, netip.MustParseAddr("::1"), 0), probe.Good, false, "answered"},
	})
}
