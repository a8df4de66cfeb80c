// Package bgp defines the interface between the mux agent and a BGP speaker.
package bgp

import (
	"context"
	"net/netip"
	"time"
)

// Speaker announces prefixes to routers. Set takes the full wanted state, never deltas, and is
// idempotent.
type Speaker interface {
	// Set makes sessions and announcements equal to the wanted state.
	Set(ctx context.Context, want State) error
	// Status returns the announced routes and the state of the sessions.
	Status(ctx context.Context) (Status, error)
	// Peers returns the state of the sessions. Its cost does not depend on the number of routes.
	Peers(ctx context.Context) ([]PeerStatus, error)
	// Close ends all sessions.
	Close() error
}

// State is the full wanted state of a speaker.
type State struct {
	ASN      uint32
	RouterID netip.Addr
	Peers    []Peer
	Routes   []Route
}

// Peer is one router.
type Peer struct {
	Address  netip.Addr
	ASN      uint32
	Password string // TCP MD5 (RFC 2385); empty: none
	BFD      *BFD
	// TTLSecurity is the maximum distance of the router in hops, checked by the TTL of its packets
	// (RFC 5082); 0: no check.
	TTLSecurity uint8
	// Multihop is the TTL of packets to an external router that is not on the link; 0: 1.
	Multihop uint8
}

// BFD are the timers of a BFD session (RFC 5880).
type BFD struct {
	Transmit   time.Duration
	Receive    time.Duration
	Multiplier uint32
}

// Route is one announced prefix.
type Route struct {
	Prefix  netip.Prefix
	NextHop netip.Addr
	// Graceful adds the GRACEFUL_SHUTDOWN community (RFC 8326), so that routers prefer other
	// routes.
	Graceful bool
	// Rank orders the routes of several speakers to one prefix: routers use those of the lowest
	// rank, and share the load between equal ones. At most MaxRank.
	Rank uint8
}

// MaxRank is the highest Route.Rank.
const MaxRank = 2

// Status is the current state of a speaker.
type Status struct {
	Routes []Route
	Peers  []PeerStatus
	// Withheld is the reason why wanted routes are not announced; empty: they are.
	Withheld string
	// Process is the speaker's process; zero if it is the caller's own.
	Process Process `json:"-"`
}

// Process is the process of a speaker and its build.
type Process struct {
	PID int
	// Version and Commit of its program. Commit is empty if the build does not have it, or does not
	// report it.
	Version, Commit string
}

// PeerStatus is the state of one session.
type PeerStatus struct {
	Address netip.Addr
	State   string // RFC 4271 section 8.2.2, lower case: "established"
	BFD     string // "up", "down", "" without BFD
	// Losses counts how often the session ended after it was established, in this process.
	Losses uint64
	// Reason is why the session last ended, or why the last attempt failed; empty: neither
	// happened.
	Reason string
	// GracefulRestart: the router of the established session keeps the routes while the speaker is
	// replaced (RFC 4724 section 4.2).
	GracefulRestart bool `json:",omitempty"`
}
