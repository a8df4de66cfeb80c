package dataplane

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/netdev"
)

// fastBits makes half a turn of a clock one second and a bit.
const (
	fastBits = 11
	fastHalf = time.Millisecond << (fastBits - 1)
)

var bakedVIPs = []string{vip4, vip6}

// TestCookieLive is T10 and T12: real servers with timestamps off, on, and without an offset; small exchanges and bulk transfers both ways, as GSO packets
// whose checksums are partial and as single segments whose are whole.
func TestCookieLive(t *testing.T) {
	onOneCPU(t)
	for _, timestamps := range []string{"0", "1", "2"} {
		for _, whole := range []bool{false, true} {
			t.Run(fmt.Sprintf("tcp_timestamps=%s, whole %v", timestamps, whole), func(t *testing.T) {
				n := newBakedNet(t, 0, timestamps)
				if whole {
					n.offload(n.client, "c0", false)
					n.offload(n.server, "v0", false)
				}
				l := n.listen()
				for _, vip := range bakedVIPs {
					p := n.connect(l, vip, 0)
					for i := range 50 {
						p.pull(1 + i)
						p.push(100 * i)
					}
					p.push(4 << 20)
					p.pull(4 << 20)
					if timestamps != "0" {
						if rtt := p.info(p.server).RTT; rtt == 0 || rtt > 20_000_000 {
							t.Errorf("%s: the server's round trip takes %d µs", vip, rtt)
						}
					}
				}
				n.clean()
				got := n.counted(nil)
				if begun := got["cookie_begun"]; (begun == 2) != (timestamps != "0") || got["cookie_foreign"]+got["cookie_rebuilt"]+got["cookie_contended"] != 0 {
					t.Errorf("reasons %v", got)
				}
			})
		}
	}
}

// offload turns transmit checksums of a device, and with them GSO, and GRO of what comes in, on or off.
func (n *bakedNet) offload(namespace, dev string, on bool) {
	n.t.Helper()
	ns, err := netdev.OpenNamespace(namespace)
	must(n.t, err)
	defer ns.Close()
	must(n.t, ns.SetOffload(dev, netdev.OffloadTxChecksum, on))
	must(n.t, ns.SetOffload(dev, netdev.OffloadGRO, on))
}

// TestCookieLiveSilence is T1: after silences around the edges of a clock that goes round in two seconds a server's push and a client's are there, and no
// kernel took one for old.
func TestCookieLiveSilence(t *testing.T) {
	t.Parallel()
	n := newBakedNet(t, fastBits, "1")
	l := n.listen()
	var pairs []*bakedPair
	for _, vip := range bakedVIPs {
		for range 3 {
			pairs = append(pairs, n.connect(l, vip, 0))
		}
	}
	for _, silence := range []time.Duration{fastHalf / 2, fastHalf - 1e6, fastHalf, fastHalf + 1e6, 2*fastHalf - 1e6, 2 * fastHalf, 2*fastHalf + 1e6, 5 * fastHalf} {
		time.Sleep(silence) // which is what is tested
		for i, p := range pairs {
			p.patient()
			if i%3 != 0 {
				p.push(10)
			}
			if i%3 != 1 {
				p.pull(10)
			}
			p.push(1000)
		}
	}
	n.clean()
}

// TestCookieLiveMinute: so it is with clocks as they are in production, after 70 seconds, which Cheetah's encoding does not survive.
func TestCookieLiveMinute(t *testing.T) {
	t.Parallel()
	n := newBakedNet(t, 0, "1")
	l := n.listen()
	pairs := []*bakedPair{n.connect(l, vip4, 0), n.connect(l, vip6, 0)}
	time.Sleep(70 * time.Second) // which is what is tested
	for _, p := range pairs {
		p.patient()
		p.push(10)
		p.push(10_000)
		p.pull(10_000)
	}
	n.clean()
}

// TestCookieLiveSYNCookies is T4: with SYN cookies forced, which keep what the client offered in the lowest bits of the server's timestamp, a connection has
// the same options as one without our cookies.
func TestCookieLiveSYNCookies(t *testing.T) {
	for _, timestamps := range []string{"1", "2"} {
		n := newBakedNet(t, 0, timestamps)
		n.sysctl(n.server, "net/ipv4/tcp_syncookies", "2")
		l := n.listen()
		type offered struct {
			options, scales uint8
			mss             uint32
		}
		of := func(p *bakedPair) offered {
			i := p.info(p.server)
			return offered{i.Options, i.Scales, i.SndMSS}
		}
		for _, vip := range bakedVIPs {
			n.rotate()
			plain := n.connect(l, vip, 0)
			n.rotate(1)
			stamped := n.connect(l, vip, 0)
			if got, want := of(stamped), of(plain); got != want || want.options == 0 || want.scales == 0 {
				t.Errorf("tcp_timestamps=%s, %s: %+v, without cookies %+v", timestamps, vip, got, want)
			}
			stamped.push(1 << 20)
			stamped.pull(1 << 20)
		}
		if counters := n.kernelCounters(n.server); counters["SyncookiesSent"] < 4 || counters["SyncookiesRecv"] < 4 || counters["SyncookiesFailed"] != 0 {
			t.Errorf("sent %d SYN cookies, %d came back, %d failed", counters["SyncookiesSent"], counters["SyncookiesRecv"], counters["SyncookiesFailed"])
		}
		n.clean()
	}
}

// TestCookieLiveTimeWait is T7: a client uses its port again while it, or its server, remembers the connection before, and the cookie is another one,
// higher or lower.
func TestCookieLiveTimeWait(t *testing.T) {
	t.Parallel()
	n := newBakedNet(t, 0, "1")
	n.sysctl(n.client, "net/ipv4/tcp_tw_reuse", "1")
	l := n.listen()
	port := 20000
	for _, clientFirst := range []bool{true, false} {
		for _, vip := range bakedVIPs {
			port++
			for turn := range 4 {
				n.rotate(uint32(turn+1), uint32(turn+2))
				p := n.connect(l, vip, port)
				p.push(1000)
				p.pull(1000)
				first, second := p.server, p.client
				if clientFirst {
					first, second = p.client, p.server
				}
				must(t, first.Close())
				if _, err := second.Read(make([]byte, 1)); err == nil {
					t.Fatal("data after the end")
				}
				must(t, second.Close())
				if clientFirst {
					time.Sleep(1100 * time.Millisecond) // a client's kernel opens again after a second
				}
			}
		}
	}
	n.clean()
	if got := n.counted(nil); got["cookie_begun"] != 16 {
		t.Errorf("reasons %v", got)
	}
}

// TestCookieLiveRemint is T8 and T15: while keys change every 50 ms and one of a hundred packets is lost each way, conversations and transfers go on, and
// every connection lives.
func TestCookieLiveRemint(t *testing.T) {
	t.Parallel()
	n := newBakedNet(t, fastBits, "1")
	n.lose(n.host, "up0", 100)
	n.lose(n.client, "c0", 100)
	l := n.listen()
	var pairs []*bakedPair
	for _, vip := range bakedVIPs {
		pairs = append(pairs, n.connect(l, vip, 0), n.connect(l, vip, 0))
	}
	done := make(chan bool)
	var changes atomic.Uint32
	go func() {
		defer close(done)
		for i, p := range pairs {
			// However fast that is, three keys come meanwhile, and a cookie of one of them.
			for k, until := 0, changes.Load()+3; k < 150 || changes.Load() < until || k < 20_000 && n.counted(nil)["cookie_reminted"] <= uint64(i); k++ {
				p.pull(10)
				p.push(2000)
			}
			if i%2 == 0 {
				p.push(1 << 20)
				p.pull(1 << 20)
			}
		}
	}()
	for epoch := uint32(2); ; epoch++ {
		select {
		case <-done:
			got := n.counted(nil)
			// A lost acknowledgement may begin a clock twice; how often keys change depends on how long it all takes.
			if got["cookie_begun"] < 4 || got["cookie_reminted"] < 4 || got["cookie_rebuilt"] != 0 {
				t.Errorf("reasons %v", got)
			}
			n.clean()
			return
		case <-time.After(50 * time.Millisecond):
			n.rotate(epoch-1, epoch)
			changes.Add(1)
		}
	}
}

// TestCookieLiveForgotten is T9: the host loses its clocks again and again while connections talk, transfer and are silent.
func TestCookieLiveForgotten(t *testing.T) {
	t.Parallel()
	n := newBakedNet(t, fastBits, "1")
	l := n.listen()
	var pairs []*bakedPair
	for _, vip := range bakedVIPs {
		pairs = append(pairs, n.connect(l, vip, 0), n.connect(l, vip, 0))
	}
	for turn := range 12 {
		n.forget()
		for _, p := range pairs {
			p.patient()
			p.pull(10) // who pushes first without a clock sends the server's own time
			p.push(10)
			p.push(200_000)
			p.pull(200_000)
		}
		if turn%4 == 3 {
			time.Sleep(fastHalf + fastHalf/3)
			for _, p := range pairs {
				p.push(10)
			}
		}
	}
	n.clean()
	if got := n.counted(nil); got["cookie_rebuilt"] < 40 {
		t.Errorf("reasons %v", got)
	}
}

// TestCookieLiveLoss is T6: with one of a hundred packets lost each way kernels take back no more of what they sent twice than without cookies.
func TestCookieLiveLoss(t *testing.T) {
	t.Parallel()
	n := newBakedNet(t, 0, "1")
	n.lose(n.host, "up0", 100)
	n.lose(n.client, "c0", 100)
	l := n.listen()
	undone := []string{"TCPFullUndo", "TCPPartialUndo", "TCPDSACKUndo", "TCPLossUndo", "TCPSpuriousRTOs"}
	measure := func(epochs ...uint32) (undo uint64, all map[string]uint64) {
		n.rotate(epochs...)
		before := n.kernelCounters(n.server)
		for range 4 {
			p := n.connect(l, vip4, 0)
			p.push(8 << 20)
		}
		all = map[string]uint64{}
		after := n.kernelCounters(n.server)
		for _, name := range append(undone, "RetransSegs", "TCPDSACKRecv") {
			all[name] = after[name] - before[name]
		}
		for _, name := range undone {
			undo += all[name]
		}
		return undo, all
	}
	plain, plainAll := measure()
	stamped, all := measure(1)
	t.Logf("undone %d %v, without cookies %d %v", stamped, all, plain, plainAll)
	if all["RetransSegs"] == 0 {
		t.Error("nothing was lost")
	}
	if stamped > 3*plain+30 {
		t.Errorf("%d retransmissions were undone, %d without cookies", stamped, plain)
	}
	n.clean()
}

// TestCookieLiveMicroseconds: a server whose kernel counts microseconds for this client (tcp_usec_ts of its route) is stamped like any other.
func TestCookieLiveMicroseconds(t *testing.T) {
	t.Parallel()
	n := newBakedNet(t, 0, "1")
	server, err := netdev.OpenNamespace(n.server)
	must(t, err)
	defer server.Close()
	must(t, server.AddRoute(netdev.Route{
		Destination: netip.MustParsePrefix(client4 + "/32"), Via: netip.MustParseAddr("10.20.1.254"), Device: "v0", Features: netdev.FeatureMicroseconds,
	}))
	l := n.listen()
	p := n.connect(l, vip4, 0)
	if i := p.info(p.server); i.Options&64 == 0 { // TCPI_OPT_USEC_TS
		t.Fatalf("options %#x: the route's feature has no effect", i.Options)
	}
	for i := range 100 {
		p.pull(10)
		p.push(1000 * i)
	}
	time.Sleep(300 * time.Millisecond) // several turns of a clock of microseconds
	p.push(10)
	n.clean()
	p.push(4 << 20)
	p.pull(4 << 20)
	// The client takes them for milliseconds: of acknowledgements that overtake each other by more than a quarter of one it calls the later one old, without
	// cookies too.
	n.clean("PAWSEstab")
	if got := n.counted(nil); got["cookie_begun"] != 1 {
		t.Errorf("reasons %v", got)
	}
}

// TestCookieLiveLate: connections that are there when their endpoint gets cookies go on without, and those that have one when it gets none keep it.
func TestCookieLiveLate(t *testing.T) {
	n := newBakedNet(t, 0, "1")
	n.rotate()
	l := n.listen()
	early := n.connect(l, vip4, 0)
	early.push(10_000)
	n.rotate(1)
	late := n.connect(l, vip4, 0)
	for range 20 {
		for _, p := range []*bakedPair{early, late} {
			p.pull(100)
			p.push(5000)
		}
	}
	n.rotate()
	for range 20 {
		for _, p := range []*bakedPair{early, late} {
			p.pull(100)
			p.push(5000)
		}
	}
	n.clean()
	if got := n.counted(nil); got["cookie_begun"] != 1 || got["cookie_foreign"] == 0 || got["cookie_rebuilt"] != 0 {
		t.Errorf("reasons %v", got)
	}
}
