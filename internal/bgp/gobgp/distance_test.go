package gobgp

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/bgp"
)

// TestTTLSecurity: with a router that drops BGP packets whose TTL is below 255 (RFC 5082) a session
// needs TTLSecurity, and the status has the reason without it. Off-link packets to the speaker's
// own port are dropped, too: a router whose packets have a lower TTL gets no session.
func TestTTLSecurity(t *testing.T) {
	if !ownNamespace(t) {
		return
	}
	r := newRouter(t, "md5secret")
	r.configure("router bgp 65000", "no neighbor 10.10.0.11 bfd", "neighbor 10.10.0.11 ttl-security hops 1")
	ctx := context.Background()
	s := New(Options{ListenPort: 179, Logger: slog.New(slog.NewTextHandler(os.Stdout, nil))})
	defer s.Close()
	set := func(hops uint8) {
		t.Helper()
		want := wanted("md5secret", "203.0.113.10")
		want.Peers[0].BFD, want.Peers[0].TTLSecurity = nil, hops
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
	const vip = "203.0.113.10/32"
	set(0)
	silent := func() bool { return strings.Contains(peer().Reason, "does not answer: its TTL security") }
	r.until("a reason comes without TTL security", silent)
	if st := peer(); st.State == "established" || r.route(vip) != nil {
		t.Errorf("a session without TTL security: %+v", st)
	}
	set(1)
	r.until("the route arrives with TTL security", func() bool { return r.route(vip) != nil })
	if silent() {
		t.Error("the reason outlives what it is of")
	}

	// The other direction: the router's packets leave with TTL 1.
	r.configure("router bgp 65000", "no neighbor 10.10.0.11 ttl-security hops 1", "neighbor 10.10.0.11 shutdown")
	r.until("the session ends", func() bool { return peer().State != "established" })
	r.configure("router bgp 65000", "no neighbor 10.10.0.11 shutdown")
	r.until("a reason comes with TTL security here alone", silent)
	if r.route(vip) != nil {
		t.Error("a session with a router whose packets have TTL 1")
	}
}

// TestDistance checks the distance settings that are passed to GoBGP.
func TestDistance(t *testing.T) {
	for _, c := range []struct {
		peer              bgp.Peer
		least, multihopBy uint32
	}{
		{bgp.Peer{}, 0, 0}, {bgp.Peer{TTLSecurity: 1}, 255, 0}, {bgp.Peer{TTLSecurity: 254}, 2, 0}, {bgp.Peer{Multihop: 2}, 0, 2}, {bgp.Peer{Multihop: 255}, 0, 255},
	} {
		p := apiPeer(c.peer, false, false)
		if p.GetTtlSecurity().GetEnabled() != (c.least != 0) || p.GetTtlSecurity().GetTtlMin() != c.least ||
			p.GetEbgpMultihop().GetEnabled() != (c.multihopBy != 0) || p.GetEbgpMultihop().GetMultihopTtl() != c.multihopBy {
			t.Errorf("%+v: %v, %v", c.peer, p.GetTtlSecurity(), p.GetEbgpMultihop())
		}
	}
}
