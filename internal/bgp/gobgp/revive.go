package gobgp

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
)

// reviveWait is the least time between two revivals of one session; one that is lost sooner waits the idle hold time,
// so that a router which refuses us is not asked all the time.
const reviveWait = 3 * time.Second

// follow watches sessions and revives lost ones until ctx ends.
//
// A lost session would wait five seconds in Idle, and a reset that BFD asked for meanwhile would end the next one as
// soon as it is up (GoBGP 4.8): a peer that is taken out and added again has neither.
func (s *Speaker) follow(ctx context.Context, srv *server.BgpServer) error {
	// Only the one goroutine of WatchEvent uses them.
	up, revived := map[netip.Addr]bool{}, map[netip.Addr]time.Time{}
	err := srv.WatchEvent(ctx, server.WatchEventMessageCallbacks{
		OnPeerUpdate: func(e *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
			if e.Type != apiutil.PEER_EVENT_STATE {
				return
			}
			peer := e.Peer.State.NeighborAddress
			if e.Peer.State.SessionState == packet.BGP_FSM_ESTABLISHED {
				up[peer] = true
				return
			}
			lost := up[peer]
			up[peer] = false
			if lost && at.Sub(revived[peer]) >= reviveWait {
				revived[peer] = at
				s.revive(ctx, srv, peer)
			}
		},
	}, server.WatchPeer())
	if err != nil {
		return fmt.Errorf("follow bgp sessions: %w", err)
	}
	return nil
}

// revive adds a wanted peer afresh.
func (s *Speaker) revive(ctx context.Context, srv *server.BgpServer, address netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, wanted := s.peers[address]
	if !wanted || s.server != srv || ctx.Err() != nil {
		return
	}
	err := srv.DeletePeer(ctx, &api.DeletePeerRequest{Address: address.String()})
	if err == nil {
		delete(s.peers, address)
		err = srv.AddPeer(ctx, &api.AddPeerRequest{Peer: apiPeer(p)})
	}
	if err != nil {
		// The next Set adds what is missing.
		s.options.Logger.Warn("revive bgp session", "peer", address, "error", err)
		return
	}
	s.peers[address] = p
}
