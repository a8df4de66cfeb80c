// Package gobgp implements bgp.Speaker with an embedded GoBGP. It is the only importer of GoBGP.
//
// GoBGP opens sockets from its own goroutines, so that a process with a Speaker belongs to one
// network namespace.
package gobgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/shuntlb/shunt/internal/bgp"
)

// Options configures a Speaker in addition to its State.
type Options struct {
	// ListenPort is the TCP port for sessions that routers open; -1: the speaker only opens
	// sessions itself. If the port is taken the speaker continues without listening.
	ListenPort int
	// Restarting: the speaker replaces one that ended without closing its sessions, while the data
	// plane continued to forward. Routers that support graceful restart (RFC 4724) are requested to
	// keep the old routes until this speaker has sent all of the first State.
	Restarting bool
	// Logger receives GoBGP's log.
	Logger *slog.Logger
}

// Speaker is a bgp.Speaker. It is safe for concurrent use.
type Speaker struct {
	options Options

	mu sync.Mutex
	// server is nil while the wanted state has no AS number.
	server *server.BgpServer
	// unwatch ends the event subscription of the server.
	unwatch context.CancelFunc
	// have is the AS number and router id that the server was started with.
	have   bgp.State
	routes map[netip.Prefix]bgp.Route
	peers  map[netip.Addr]bgp.Peer
	// internal: a peer is in the speaker's own AS, which determines the attributes of routes with a
	// rank.
	internal bool
	// sessions are those of peers.
	sessions map[netip.Addr]*session
	closed   bool
}

var _ bgp.Speaker = (*Speaker)(nil)

// New returns a speaker that announces nothing until Set.
func New(o Options) *Speaker {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Speaker{options: o}
}

// Set implements bgp.Speaker. Withdrawals are sent before additions.
func (s *Speaker) Set(ctx context.Context, want bgp.State) error {
	if err := want.Validate(); err != nil {
		return fmt.Errorf("set bgp state: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("set bgp state: the speaker is closed")
	}
	if want.ASN == 0 {
		s.stopLocked()
		return nil
	}
	if s.server != nil && (s.have.ASN != want.ASN || s.have.RouterID != want.RouterID) {
		s.stopLocked()
	}
	if s.server == nil {
		if err := s.startLocked(ctx, want); err != nil {
			return err
		}
	}
	if internal := hasInternal(want); internal != s.internal {
		s.internal = internal
		for prefix, r := range s.routes {
			if r.Rank > 0 { // announce it again, with the other attributes
				s.routes[prefix] = bgp.Route{Prefix: prefix}
			}
		}
	}
	return errors.Join(s.syncRoutesLocked(want.Routes), s.syncPeersLocked(ctx, want.Peers))
}

// Close implements bgp.Speaker. It ends sessions with a Cease, so that routers drop the routes
// immediately.
func (s *Speaker) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.stopLocked()
	return nil
}

func (s *Speaker) startLocked(ctx context.Context, want bgp.State) error {
	global := &api.Global{Asn: want.ASN, RouterId: want.RouterID.String(), ListenPort: int32(s.options.ListenPort)}
	srv, err := s.launch(ctx, global)
	if errors.Is(err, syscall.EADDRINUSE) && global.ListenPort > 0 {
		s.options.Logger.Warn("bgp port is taken; sessions are only opened from here", "port", global.ListenPort)
		global.ListenPort = -1
		srv, err = s.launch(ctx, global)
	}
	if err != nil {
		return fmt.Errorf("start bgp: %w", err)
	}
	// The subscription lasts as long as the server, not as long as the call that created it.
	watch, unwatch := context.WithCancel(context.WithoutCancel(ctx))
	if err := errors.Join(refuseForeignRoutes(ctx, srv), s.follow(watch, srv)); err != nil {
		unwatch()
		srv.Stop()
		return err
	}
	s.server, s.unwatch = srv, unwatch
	s.have = bgp.State{ASN: want.ASN, RouterID: want.RouterID}
	s.routes, s.peers, s.sessions = map[netip.Prefix]bgp.Route{}, map[netip.Addr]bgp.Peer{}, map[netip.Addr]*session{}
	return nil
}

func (s *Speaker) launch(ctx context.Context, global *api.Global) (*server.BgpServer, error) {
	srv := server.NewBgpServer(server.LoggerOption(s.options.Logger, new(slog.LevelVar)))
	go srv.Serve()
	if err := srv.StartBgp(ctx, &api.StartBgpRequest{Global: global}); err != nil {
		srv.Stop()
		return nil, err
	}
	return srv, nil
}

// refuseForeignRoutes accepts only the speaker's own routes into the table, because a mux uses no
// routes of routers.
func refuseForeignRoutes(ctx context.Context, srv *server.BgpServer) error {
	own := &api.Policy{Name: "own", Statements: []*api.Statement{{
		Name:       "own",
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT},
	}}}
	if err := srv.AddPolicy(ctx, &api.AddPolicyRequest{Policy: own}); err != nil {
		return fmt.Errorf("add policy for own routes: %w", err)
	}
	err := srv.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
		Name:          "global",
		Direction:     api.PolicyDirection_POLICY_DIRECTION_IMPORT,
		Policies:      []*api.Policy{own},
		DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT,
	}})
	if err != nil {
		return fmt.Errorf("refuse routes of peers: %w", err)
	}
	return nil
}

func (s *Speaker) stopLocked() {
	if s.server != nil {
		s.unwatch()
		s.server.Stop()
	}
	s.server, s.have, s.routes, s.peers, s.sessions = nil, bgp.State{}, nil, nil, nil
}

func (s *Speaker) syncPeersLocked(ctx context.Context, want []bgp.Peer) error {
	var errs []error
	wanted := map[netip.Addr]bgp.Peer{}
	for _, p := range want {
		wanted[p.Address] = p
	}
	for a, p := range s.peers {
		if w, keep := wanted[a]; keep && w.Equal(p) {
			continue
		}
		if err := s.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: a.String()}); err != nil {
			errs = append(errs, fmt.Errorf("remove peer %v: %w", a, err))
			continue
		}
		delete(s.peers, a)
		if _, stays := wanted[a]; !stays {
			delete(s.sessions, a)
		}
	}
	for _, p := range want {
		if _, have := s.peers[p.Address]; have {
			continue
		}
		of := cmp.Or(s.sessions[p.Address], &session{restarting: s.options.Restarting})
		if err := s.server.AddPeer(ctx, &api.AddPeerRequest{Peer: apiPeer(p, false, of.restarting)}); err != nil {
			errs = append(errs, fmt.Errorf("add peer %v: %w", p.Address, err))
			continue
		}
		s.peers[p.Address], s.sessions[p.Address] = p, of
	}
	if len(want) > 0 {
		s.options.Restarting = false // no router has routes of peers that are added later
	}
	return errors.Join(errs...)
}

// Status implements bgp.Speaker.
func (s *Speaker) Status(ctx context.Context) (bgp.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out bgp.Status
	if s.server == nil {
		return out, nil
	}
	for _, r := range s.routes {
		out.Routes = append(out.Routes, r)
	}
	slices.SortFunc(out.Routes, func(a, b bgp.Route) int { return a.Prefix.Compare(b.Prefix) })
	var err error
	out.Peers, err = s.peersLocked(ctx)
	return out, err
}

// Peers implements bgp.Speaker.
func (s *Speaker) Peers(ctx context.Context) ([]bgp.PeerStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return nil, nil
	}
	return s.peersLocked(ctx)
}

// peersLocked returns the sessions sorted by address.
func (s *Speaker) peersLocked(ctx context.Context) (out []bgp.PeerStatus, err error) {
	err = s.server.ListPeer(ctx, &api.ListPeerRequest{}, func(p *api.Peer) {
		st, ok := peerStatus(p)
		if !ok {
			return
		}
		if st.BFD == "" && s.peers[st.Address].BFD != nil {
			st.BFD = "down"
		}
		if of := s.sessions[st.Address]; of != nil {
			st.Losses, st.Reason = of.losses, of.reason(time.Now())
		}
		out = append(out, st)
	})
	if err != nil {
		return out, fmt.Errorf("list bgp peers: %w", err)
	}
	slices.SortFunc(out, func(a, b bgp.PeerStatus) int { return a.Address.Compare(b.Address) })
	return out, nil
}
