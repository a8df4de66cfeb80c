// Package bgp is what the mux agent asks of a BGP speaker.
package bgp

import (
	"context"
	"net/netip"
	"time"
)

// Speaker announces prefixes to routers. Set takes the full wanted state, never deltas, and is idempotent.
type Speaker interface {
	// Set makes sessions and announcements equal to the wanted state.
	Set(ctx context.Context, want State) error
	// Status reads what is announced and how the sessions are.
	Status(ctx context.Context) (Status, error)
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
	// Graceful carries the GRACEFUL_SHUTDOWN community (RFC 8326): routers prefer others.
	Graceful bool
}

// Status is what a speaker does at this moment.
type Status struct {
	Routes []Route
	Peers  []PeerStatus
	// Withheld says in words why routes that were asked for are not announced; empty when they are.
	Withheld string
}

// PeerStatus is the state of one session.
type PeerStatus struct {
	Address netip.Addr
	State   string // RFC 4271 section 8.2.2, lower case: "established"
	BFD     string // "up", "down", "" without BFD
}
