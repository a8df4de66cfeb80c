package gobgp

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
)

const (
	// reviveWait is the least time between two revivals of one session. A session that is lost
	// sooner waits the idle hold time, so that a router that refuses it does not get continuous
	// attempts.
	reviveWait = 3 * time.Second
	// bfdWait is the time between the establishment of a session and the start of its BFD. FRR
	// (8.4) begins a BFD session before BGP is up, ends it with state Down when BGP is established,
	// and begins another one within a second. GoBGP treats the end of a BFD session that is up as a
	// failure and resets BGP, so that the routes to a restarted router were withdrawn just after
	// they had been announced.
	bfdWait = time.Second
	// answerWait is how long a router may take to answer an OPEN before the status reports that it
	// does not.
	answerWait = 5 * time.Second
)

// session is a peer's session as this process saw it. Speaker.mu guards it.
type session struct {
	// established is when it came up; zero while it is down.
	established time.Time
	revived     time.Time
	losses      uint64
	// opening is since when the router has not answered an OPEN; zero: no OPEN is outstanding.
	opening time.Time
	// restarting: no session was established since this speaker replaced another one.
	restarting bool
	// lost is the reason of the last loss, failed that of the last failed attempt since then.
	lost, failed string
}

// reason returns the reason for bgp.PeerStatus.
func (s *session) reason(now time.Time) string {
	if !s.opening.IsZero() && now.Sub(s.opening) >= answerWait {
		return "the router takes the connection but does not answer: its TTL security or number of hops may be others than ttlSecurity and multihop of this peer"
	}
	if s.established.IsZero() && s.failed != "" {
		return s.failed
	}
	return s.lost
}

// follow subscribes to session events until ctx ends. It revives lost sessions and starts BFD for
// established ones.
//
// A lost session would wait five seconds in Idle, and a reset requested by BFD meanwhile would end
// the next session as soon as it is up (GoBGP 4.8). A peer that is removed and added again has
// neither problem.
func (s *Speaker) follow(ctx context.Context, srv *server.BgpServer) error {
	err := srv.WatchEvent(ctx, server.WatchEventMessageCallbacks{
		OnPeerUpdate: func(e *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
			if e.Type == apiutil.PEER_EVENT_STATE {
				s.changed(ctx, srv, e.Peer.State, at)
			}
		},
	}, server.WatchPeer())
	if err != nil {
		return fmt.Errorf("follow bgp sessions: %w", err)
	}
	return nil
}

// changed handles a session's new state.
func (s *Speaker) changed(ctx context.Context, srv *server.BgpServer, state apiutil.PeerState, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	address := state.NeighborAddress
	of := s.sessions[address]
	if of == nil || s.server != srv || ctx.Err() != nil {
		return
	}
	switch state.SessionState {
	case packet.BGP_FSM_OPENSENT, packet.BGP_FSM_OPENCONFIRM:
		if of.opening.IsZero() {
			of.opening = at
		}
	default:
		of.opening = time.Time{}
	}
	if state.SessionState == packet.BGP_FSM_ESTABLISHED {
		of.established, of.failed, of.restarting = at, "", false
		time.AfterFunc(bfdWait, func() { s.watch(ctx, srv, address, at) })
		return
	}
	reason := ""
	switch state.DisconnectReason {
	// the next attempt begins
	case api.PeerState_DISCONNECT_REASON_UNSPECIFIED, api.PeerState_DISCONNECT_REASON_IDLE_TIMER_EXPIRED:
	case api.PeerState_DISCONNECT_REASON_DECONFIGURED: // a revival
	default:
		reason = reasonOf(state.DisconnectMessage)
	}
	if of.established.IsZero() {
		of.failed = cmp.Or(reason, of.failed)
		return
	}
	of.established, of.lost = time.Time{}, cmp.Or(reason, "unknown")
	of.losses++
	s.options.Logger.Warn("bgp session lost", "peer", address, "reason", of.lost, "losses", of.losses)
	if at.Sub(of.revived) >= reviveWait {
		of.revived = at
		s.reviveLocked(ctx, srv, address)
		return
	}
	s.updateLocked(ctx, srv, address, false)
}

// reasonOf returns GoBGP's reason for the end of a session. It adds the name of a Cease subcode
// that GoBGP 4.8 does not have, and BFD where GoBGP reports a reset by BFD as an administrative
// one, because the speaker itself resets no session.
func reasonOf(message string) string {
	return strings.NewReplacer(
		"code 6(cease) subcode 10(undefined)", "code 6(cease) subcode 10(BFD down, RFC 9384)",
		"notification-sent code 6(cease) subcode 4(administrative reset)", "notification-sent code 6(cease) subcode 4(administrative reset: BFD down)",
	).Replace(message)
}

// reviveLocked removes and adds a wanted peer, without BFD. GoBGP 4.8 opens the connection of an
// added peer after 1.5 to 2 s, so that a router whose BFD detected the same failure has time to end
// its own session.
func (s *Speaker) reviveLocked(ctx context.Context, srv *server.BgpServer, address netip.Addr) {
	p, wanted := s.peers[address]
	if !wanted {
		return
	}
	err := srv.DeletePeer(ctx, &api.DeletePeerRequest{Address: address.String()})
	if err == nil {
		delete(s.peers, address)
		err = srv.AddPeer(ctx, &api.AddPeerRequest{Peer: apiPeer(p, false, false)})
	}
	if err != nil {
		// The next Set adds the missing peer.
		s.options.Logger.Warn("revive bgp session", "peer", address, "error", err)
		return
	}
	s.peers[address] = p
}

// watch starts BFD for a session if it is still the one established at since.
func (s *Speaker) watch(ctx context.Context, srv *server.BgpServer, address netip.Addr, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.sessions[address]
	if of == nil || !of.established.Equal(since) || s.server != srv || ctx.Err() != nil {
		return
	}
	s.updateLocked(ctx, srv, address, true)
}

// updateLocked starts or ends the BFD session of a peer that has BFD configured.
func (s *Speaker) updateLocked(ctx context.Context, srv *server.BgpServer, address netip.Addr, bfd bool) {
	p, wanted := s.peers[address]
	if !wanted || p.BFD == nil {
		return
	}
	if _, err := srv.UpdatePeer(ctx, &api.UpdatePeerRequest{Peer: apiPeer(p, bfd, false)}); err != nil {
		s.options.Logger.Warn("update bfd session", "peer", address, "bfd", bfd, "error", err)
	}
	if bfd {
		go s.guardBFD(ctx)
	}
}
