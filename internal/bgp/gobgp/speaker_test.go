package gobgp

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/shuntlb/shunt/internal/bgp"
)

func wanted(password string, vips ...string) bgp.State {
	s := bgp.State{
		ASN: 65010, RouterID: netip.MustParseAddr("10.10.0.11"),
		Peers: []bgp.Peer{{
			Address: netip.MustParseAddr("10.10.0.1"), ASN: 65000, Password: password,
			// The router detects a loss after 5 s, before BGP's hold time of 9 s ends. With a
			// shorter time busy CPUs alone would cause losses, because the speaker of this process
			// has no real-time priority.
			BFD: &bgp.BFD{Transmit: 100 * time.Millisecond, Receive: time.Second, Multiplier: 50},
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
		st := peer()
		return st.Address == netip.MustParseAddr("10.10.0.1") && st.State == "established" && st.BFD == "up" && st.Losses == 0
	})
	r.until("BFD is up at the router", func() bool { return strings.Contains(r.ask("show bfd peers"), "Status: up") })

	// FRR begins its BFD session before BGP is up, and another one after it. Neither that nor a
	// change of routes may end the session.
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
	behind := wanted("md5secret", "203.0.113.10")
	behind.Routes[0].Rank = 2
	set(behind)
	r.until("a longer path arrives", func() bool { got := r.route(v4); return got != nil && got.Path == "65010 65010 65010" })
	if got := r.route(v4); got != nil && got.LocalPref {
		t.Error("LOCAL_PREF was sent to an external peer")
	}
	set(wanted("md5secret", "203.0.113.10"))
	r.until("and the usual one again", func() bool { got := r.route(v4); return got != nil && got.Path == "65010" })
	set(wanted("md5secret"))
	r.until("withdrawal without ending the session", func() bool { return r.route(v4) == nil })
	if now, st := r.connections(), peer(); now != before || st.State != "established" || st.BFD != "up" || st.Losses != 0 {
		t.Fatalf("the session was lost: %q before, %q after, %+v", before, now, st)
	}

	set(wanted("md5secret", "203.0.113.10"))
	r.until("route is back", hop(v4, "10.10.0.11"))
	// BGP packets still pass, so that one of the two ends always sends the reason why it ends the
	// session.
	command(t, "nft", "add table inet cut; add chain inet cut in { type filter hook input priority 0; }; add rule inet cut in udp dport 3784 drop;"+
		"add chain inet cut out { type filter hook output priority 0; }; add rule inet cut out udp dport 3784 drop")
	r.until("BFD without packets ends the session, with its reason", func() bool { st := peer(); return st.Losses == 1 && strings.Contains(st.Reason, "BFD") })
	command(t, "nft", "delete table inet cut")
	r.until("BFD watches the next session", func() bool { return peer().BFD == "up" })
	r.until("the next session has the route", hop(v4, "10.10.0.11"))

	// The router's notification is lost with everything else, and its socket is closed. The order
	// of these two for the speaker, and whether its own BFD detects the cut before, is random.
	command(t, "ip", "link", "set", "eth0", "arp", "off")
	command(t, "ip", "addr", "del", "10.10.0.11/24", "dev", "eth0")
	r.until("BFD notices a cut", func() bool { return r.route(v4) == nil })
	command(t, "ip", "addr", "add", "10.10.0.11/24", "dev", "eth0")
	command(t, "ip", "link", "set", "eth0", "arp", "on")
	r.until("the session is revived after a cut", hop(v4, "10.10.0.11"))
	r.until("the loss is counted, with a reason", func() bool { st := peer(); return st.Losses == 2 && st.Reason != "" })
	r.until("BFD watches the session after that", func() bool { return peer().BFD == "up" })

	set(wanted("wrong", "203.0.113.10"))
	r.until("a wrong password ends the session", func() bool {
		return !strings.Contains(r.ask("show bgp neighbors 10.10.0.11"), "BGP state = Established")
	})
	// The router logs this before it has cleaned up; the session cannot come back meanwhile.
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

// TestRanks: external peers receive a longer AS_PATH, internal ones a lower LOCAL_PREF and never
// their own AS.
func TestRanks(t *testing.T) {
	for rank := range uint8(bgp.MaxRank + 1) {
		for _, internal := range []bool{false, true} {
			length, pref := 0, uint32(0)
			for _, a := range rankAttributes(rank, 65010, internal) {
				switch a := a.(type) {
				case *packet.PathAttributeAsPath:
					for _, p := range a.Value {
						length += p.ASLen()
					}
				case *packet.PathAttributeLocalPref:
					pref = a.Value
				}
			}
			wantLength, wantPref := int(rank), uint32(0)
			if internal {
				wantLength = 0
			}
			if rank > 0 {
				wantPref = 100 - uint32(rank)
			}
			if length != wantLength || pref != wantPref {
				t.Errorf("rank %d, internal %v: AS_PATH is longer by %d, LOCAL_PREF is %d", rank, internal, length, pref)
			}
		}
	}
	s := wanted("", "203.0.113.10")
	s.Routes[0].Rank = bgp.MaxRank + 1
	if err := s.Validate(); err == nil || !strings.Contains(err.Error(), "rank: 3: must be 0 to 2") {
		t.Errorf("a rank of 3: %v", err)
	}
}

// TestReasons: the reason of an end by BFD contains BFD, whichever end of the session detected it.
func TestReasons(t *testing.T) {
	for message, want := range map[string]string{
		"notification-received code 6(cease) subcode 10(undefined)":           "notification-received code 6(cease) subcode 10(BFD down, RFC 9384)",
		"notification-sent code 6(cease) subcode 4(administrative reset)":     "notification-sent code 6(cease) subcode 4(administrative reset: BFD down)",
		"notification-received code 6(cease) subcode 4(administrative reset)": "notification-received code 6(cease) subcode 4(administrative reset)",
		"notification-received code 6(cease) subcode 3(peer deconfigured)":    "notification-received code 6(cease) subcode 3(peer deconfigured)",
		"read-failed": "read-failed",
	} {
		if got := reasonOf(message); got != want {
			t.Errorf("reason of %q: %q, want %q", message, got, want)
		}
	}
}
