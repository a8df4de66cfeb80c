package manager

import (
	"net"
	"net/netip"
	"sync"
)

// Bounds of connections whose peers have not presented a certificate of a node, a manager or an
// administrator.
const (
	// maxArriving bounds connections in the TLS handshake. A silent peer keeps one for
	// handshakeTimeout. The bound is higher than the number of nodes of a large cluster, which all
	// reconnect when a manager starts.
	maxArriving = 16384
	// maxGuests bounds connections with TLS and without a certificate, or with one of role tenant
	// or viewer: users, programs and nodes that join. Each takes 38 KiB.
	maxGuests = 4096
	// maxGuestsOf is the number of guests per source (levels), times levelFactor. It is higher than
	// the number of streams of one caller.
	maxGuestsOf = 512
)

// lobby bounds connections, in total and per source. When it is full, a connection of the source
// with the most connections is closed for a source with fewer, so that a single source cannot keep
// others out.
type lobby struct {
	most int
	// each is the limit of a narrowest prefix. 0: none.
	each int

	mu     sync.Mutex
	total  int
	counts map[netip.Prefix]int
	groups map[netip.Prefix]map[*chair]bool // by the widest prefix
}

// chair is a connection's place in a lobby.
type chair struct {
	of   *lobby
	conn net.Conn
	at   []netip.Prefix
	// left: it was given up.
	left bool
}

func newLobby(most, each int) *lobby {
	return &lobby{most: most, each: each, counts: map[netip.Prefix]int{}, groups: map[netip.Prefix]map[*chair]bool{}}
}

// admit returns a place for a connection from an address, or nil if there is none. It may close
// another connection to make room.
func (c *lobby) admit(conn net.Conn, from string) *chair {
	s := &chair{of: c, conn: conn, at: levels(from)}
	closed, ok := c.take(s)
	if closed != nil {
		closed.conn.Close()
	}
	if !ok {
		return nil
	}
	return s
}

func (c *lobby) take(s *chair) (closed *chair, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range s.at {
		if c.each > 0 && c.counts[p] >= c.each*levelFactor(p) {
			return nil, false
		}
	}
	own := s.at[len(s.at)-1]
	if c.total >= c.most {
		largest := own
		for p, g := range c.groups {
			if len(g) > len(c.groups[largest])+1 {
				largest = p
			}
		}
		if largest == own {
			return nil, false
		}
		for closed = range c.groups[largest] {
			break
		}
		c.leaveLocked(closed)
	}
	c.total++
	for _, p := range s.at {
		c.counts[p]++
	}
	if c.groups[own] == nil {
		c.groups[own] = map[*chair]bool{}
	}
	c.groups[own][s] = true
	return closed, true
}

// leave releases the place. It does nothing for a nil chair or a released one.
func (s *chair) leave() {
	if s == nil {
		return
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.leaveLocked(s)
}

func (c *lobby) leaveLocked(s *chair) {
	if s.left {
		return
	}
	s.left = true
	c.total--
	for _, p := range s.at {
		if c.counts[p]--; c.counts[p] == 0 {
			delete(c.counts, p)
		}
	}
	own := s.at[len(s.at)-1]
	if delete(c.groups[own], s); len(c.groups[own]) == 0 {
		delete(c.groups, own)
	}
}

// visitor is a connection that holds a place in a lobby until it is closed.
type visitor struct {
	net.Conn
	mu   sync.Mutex
	seat *chair
	over bool
}

// moves releases the current place and takes another one, which may be nil.
func (v *visitor) moves(to *chair) {
	v.mu.Lock()
	was := v.seat
	if v.seat = to; v.over {
		v.seat = nil
	}
	over := v.over
	v.mu.Unlock()
	was.leave()
	if over {
		to.leave()
	}
}

// Close implements net.Conn.
func (v *visitor) Close() error {
	v.mu.Lock()
	was := v.seat
	v.seat, v.over = nil, true
	v.mu.Unlock()
	was.leave()
	return v.Conn.Close()
}
