package packet

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
)

// TestManyServersAnswer checks, with bursts without a pause, that many real servers all answer with
// the right verdict.
func TestManyServersAnswer(t *testing.T) {
	r := newRig(t)
	r.serve(8000, say(answer200))
	for name, change := range map[string]func(*lb.Check){"tcp": tcp, "http": http} {
		t.Run(name, func(t *testing.T) {
			r.t = t
			ids := r.add(many(20000, 1, change)...)
			for range 3 {
				for id, a := range r.ask(ids) {
					if a.Verdict != probe.Good {
						t.Fatalf("probe %d: %+v", id, a)
					}
				}
			}
		})
	}
}

// TestWordsOfMisbehavingServers probes a server for each kind of failure, over both families.
func TestWordsOfMisbehavingServers(t *testing.T) {
	r := newRig(t)
	hang := func(c net.Conn) { c.Read(make([]byte, 2048)); c.Read(make([]byte, 1)); c.Close() }
	reset := func(c net.Conn) {
		c.Read(make([]byte, 2048))
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	behaviours := []func(net.Conn){
		8001: say(answer200), 8002: say("HTTP/1.0 503 No\r\n\r\n"), 8003: say("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n"),
		8004: say("SSH-2.0-x\r\n"), 8005: say(""), 8006: hang, 8007: reset, 8008: say("HTTP/1.1 2"), 8009: say("HTTP/1.1 100 Continue\r\n\r\n" + answer200),
	}
	for port, f := range behaviours {
		if f != nil {
			r.serve(port, f)
		}
	}
	// No machine answers for this address: the mux routes it to the servers' machine, which does
	// not have it.
	dead := netip.MustParseAddr("10.40.0.1")
	must(t, r.muxNS.AddRoute(netdev.Route{Destination: netip.PrefixFrom(dead, 32), Via: serverAddress, Device: "up0"}))
	const long, short = 30 * time.Second, 120 * time.Millisecond
	at4, at6 := targets.Addr().Next(), targets6.Addr().Next()
	cases := []struct {
		port    int
		kind    func(*lb.Check)
		timeout time.Duration
		verdict probe.Verdict
		words   string
	}{
		{8001, http, long, probe.Good, "status 200"},
		{8001, tcp, long, probe.Good, "connected"},
		{8002, http, long, probe.Bad, "status 503"},
		{8003, http, long, probe.Good, "status 302"},
		{8004, http, long, probe.Unsure, "connected, but the answer begins with no whole status line"},
		{8005, http, long, probe.Bad, "connected, but closed without an answer"},
		{8006, http, short, probe.Bad, "connected, but no bytes within 120 ms"},
		{8006, tcp, long, probe.Good, "connected"},
		{8007, http, long, probe.Bad, "connected, but reset"},
		{8008, http, long, probe.Unsure, "connected, but the answer begins with no whole status line"},
		{8009, http, long, probe.Unsure, "connected, but the answer begins with no whole status line"},
		{8099, http, long, probe.Bad, "connection refused"},
		{8099, tcp, long, probe.Bad, "connection refused"},
	}
	want := map[uint32]probe.Answer{}
	var ids []uint32
	for _, c := range cases {
		for _, a := range []netip.Addr{at4, at6} {
			added := r.add(target(netip.AddrPortFrom(a, uint16(c.port)), within(c.timeout, c.kind)))
			want[added[0]] = probe.Answer{Verdict: c.verdict, Words: c.words}
			ids = append(ids, added...)
		}
	}
	silent := r.add(target(netip.AddrPortFrom(dead, 80), within(short, tcp)))
	want[silent[0]] = probe.Answer{Verdict: probe.Unsure, Words: "no answer to three SYNs within 120 ms"}
	nowhere := r.add(target(netip.MustParseAddrPort("192.0.2.1:80"), within(long, tcp)))
	want[nowhere[0]] = probe.Answer{Verdict: probe.Unsure, Words: "no route to 192.0.2.1"}
	r.resolve(at4, at6, dead)
	r.ask(ids[:2]) // the servers' machine resolves the mux's addresses
	for range 2 {
		for id, a := range r.ask(append(append(ids, silent...), nowhere...)) {
			if w := want[id]; a.Verdict != w.Verdict || a.Words != w.Words {
				t.Errorf("target %v: got %v %q, want %v %q", id, a.Verdict, a.Words, w.Verdict, w.Words)
			}
		}
	}
}

// TestKernelWithoutProbes checks that connections of the mux's own sockets are not affected.
func TestKernelWithoutProbes(t *testing.T) {
	r := newRig(t)
	r.serve(8001, say(answer200))
	at := netip.AddrPortFrom(targets.Addr().Next(), 8001)
	// A socket on one of the prober's ports connects to the same server as a probe.
	ids := r.add(target(at, http))
	r.ask(ids)
	c, err := netdev.Dialer(r.muxNS.Name)(t.Context(), "tcp", at.String())
	must(t, err)
	defer c.Close()
	_, err = fmt.Fprint(c, "GET / HTTP/1.1\r\n\r\n")
	must(t, err)
	b := make([]byte, len(answer200))
	if n, err := c.Read(b); err != nil || string(b[:n]) != answer200 {
		t.Errorf("got %q, %v", b[:n], err)
	}
}
