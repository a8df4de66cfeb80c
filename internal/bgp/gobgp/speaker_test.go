package gobgp

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/bgp"
)

func wanted(password string, vips ...string) bgp.State {
	s := bgp.State{
		ASN: 65010, RouterID: netip.MustParseAddr("10.10.0.11"),
		Peers: []bgp.Peer{{
			Address: netip.MustParseAddr("10.10.0.1"), ASN: 65000, Password: password,
			BFD: &bgp.BFD{Transmit: 100 * time.Millisecond, Receive: time.Second, Multiplier: 3},
		}},
	}
	for _, v := range vips {
		a := netip.MustParseAddr(v)
		hop := "10.10.0.11"
		if a.Is6() {
			hop = "2001:db8:10::11"
		}
		s.Routes = append(s.Routes, bgp.Route{Prefix: netip.PrefixFrom(a, a.BitLen()), NextHop: netip.MustParseAddr(hop)})
	}
	return s
}

func TestSpeakerWithFRR(t *testing.T) {
	if !ownNamespace(t) {
		return
	}
	r := newRouter(t, "md5secret")
	ctx := context.Background()
	s := New(Options{ListenPort: 179, Logger: slog.New(slog.NewTextHandler(os.Stdout, nil))})
	defer s.Close()
	set := func(want bgp.State) {
		t.Helper()
		if err := s.Set(ctx, want); err != nil {
			t.Fatal(err)
		}
	}
	peer := func() bgp.PeerStatus {
		t.Helper()
		st, err := s.Status(ctx)
		if err != nil || len(st.Peers) != 1 {
			t.Fatalf("status %+v, %v", st, err)
		}
		return st.Peers[0]
	}
	hop := func(prefix, want string) func() bool {
		return func() bool { got := r.route(prefix); return got != nil && got.NextHop == want }
	}
	const v4, v6 = "203.0.113.10/32", "2001:db8:f::10/128"

	set(wanted("md5secret", "203.0.113.10", "2001:db8:f::10"))
	r.until("IPv4 route arrives", hop(v4, "10.10.0.11"))
	r.until("IPv6 route arrives over the same session", hop(v6, "2001:db8:10::11"))
	r.until("BFD comes up", func() bool {
		return peer() == bgp.PeerStatus{Address: netip.MustParseAddr("10.10.0.1"), State: "established", BFD: "up"}
	})
	r.until("BFD is up at the router", func() bool { return strings.Contains(r.ask("show bfd peers"), "Status: up") })

	// FRR begins its BFD session anew when BGP comes up, which may end a session some time after it began. Updates that
	// end sessions would do so every time.
	const tries = 3
	for try := 1; ; try++ {
		before := r.connections()
		set(wanted("md5secret", "203.0.113.10", "2001:db8:f::10"))
		r.until("routes of both families", func() bool { return r.route(v4) != nil && r.route(v6) != nil })
		set(wanted("md5secret", "203.0.113.10"))
		r.until("IPv6 route is withdrawn", func() bool { return r.route(v6) == nil })
		graceful := wanted("md5secret", "203.0.113.10")
		graceful.Routes[0].Graceful = true
		set(graceful)
		r.until("graceful shutdown arrives", func() bool { got := r.route(v4); return got != nil && got.Graceful })
		set(wanted("md5secret", "203.0.113.10"))
		r.until("and is taken back", func() bool { got := r.route(v4); return got != nil && !got.Graceful })
		set(wanted("md5secret"))
		r.until("withdrawal without ending the session", func() bool { return r.route(v4) == nil })
		now := r.connections()
		if now == before && peer().State == "established" {
			break
		}
		if try == tries {
			t.Fatalf("updates ended a session: %q before, %q after", before, now)
		}
	}

	set(wanted("md5secret", "203.0.113.10"))
	r.until("route is back", hop(v4, "10.10.0.11"))
	command(t, "ip", "link", "set", "eth0", "arp", "off")
	command(t, "ip", "addr", "del", "10.10.0.11/24", "dev", "eth0")
	r.until("BFD notices a cut", func() bool { return r.route(v4) == nil })
	command(t, "ip", "addr", "add", "10.10.0.11/24", "dev", "eth0")
	command(t, "ip", "link", "set", "eth0", "arp", "on")
	r.until("the session is revived after a cut", hop(v4, "10.10.0.11"))

	set(wanted("wrong", "203.0.113.10"))
	r.until("a wrong password ends the session", func() bool {
		return !strings.Contains(r.ask("show bgp neighbors 10.10.0.11"), "BGP state = Established")
	})
	// The router says so before it has cleaned up; the session cannot come back meanwhile.
	r.until("the route goes with the session", func() bool { return r.route(v4) == nil })
	set(wanted("md5secret", "203.0.113.10"))
	r.until("the right one brings it back", hop(v4, "10.10.0.11"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r.until("closing withdraws", func() bool { return r.route(v4) == nil })
	if err := s.Set(ctx, wanted("md5secret")); err == nil {
		t.Error("a closed speaker took a state")
	}
}

func TestSetRefusesNonsense(t *testing.T) {
	s := New(Options{ListenPort: -1})
	defer s.Close()
	for want, change := range map[string]func(*bgp.State){
		"set bgp state: router id: 2001:db8::1: must be an IPv4 address":                                     func(s *bgp.State) { s.RouterID = netip.MustParseAddr("2001:db8::1") },
		"set bgp state: peer 10.10.0.1: given twice":                                                         func(s *bgp.State) { s.Peers = append(s.Peers, s.Peers[0]) },
		"set bgp state: peer 10.10.0.1: asn: 0: must be 1 to 4294967295":                                     func(s *bgp.State) { s.Peers[0].ASN = 0 },
		"set bgp state: route 203.0.113.10/32: next hop: 2001:db8::1: must be an address of the same family": func(s *bgp.State) { s.Routes[0].NextHop = netip.MustParseAddr("2001:db8::1") },
		"set bgp state: asn: 0: must be 1 to 4294967295 when there are peers":                                func(s *bgp.State) { s.ASN = 0 },
	} {
		st := wanted("", "203.0.113.10")
		change(&st)
		if err := s.Set(context.Background(), st); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
