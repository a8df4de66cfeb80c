package host

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/plan"
)

// given holds the newest load of each application, from the socket and from pages. It is in memory
// only.
type given struct {
	clock clock.Clock

	mu sync.Mutex
	// known are the servers that may report by the socket, asked the pages that are requested.
	known map[netip.AddrPort]bool
	asked map[page]bool
	said  map[netip.AddrPort]word
	read  map[page]word
}

// word is a load value with its time.
type word struct {
	value float32
	at    time.Time
}

// page is an HTTP resource with a server's load. Several endpoints may share one.
type page struct {
	server            netip.AddrPort
	path, host        string
	interval, timeout time.Duration
}

// sayer is the source of a member's load.
type sayer struct {
	// server reports by the socket, unless page is requested.
	server netip.AddrPort
	page   page
	asked  bool
	stale  time.Duration
}

// sayerOf returns the source of a binding's load.
func sayerOf(b *plan.Binding) sayer {
	l := b.Load.OrDefault()
	s := sayer{server: netip.AddrPortFrom(b.DIP, b.DIPPort), stale: l.Stale}
	if l.Asked() {
		s.asked, s.page = true, pageOf(s.server, &l)
	}
	return s
}

func pageOf(server netip.AddrPort, l *lb.Load) page {
	if l.HTTP.Port != 0 {
		server = netip.AddrPortFrom(server.Addr(), l.HTTP.Port)
	}
	return page{server, l.HTTP.Path, l.HTTP.Host, l.Interval, l.Timeout}
}

func newGiven(c clock.Clock) *given {
	return &given{clock: c, known: map[netip.AddrPort]bool{}, asked: map[page]bool{}, said: map[netip.AddrPort]word{}, read: map[page]word{}}
}

// follow sets the sources of the members.
func (g *given) follow(all []sayer) {
	known, asked := map[netip.AddrPort]bool{}, map[page]bool{}
	for _, s := range all {
		if s.asked {
			asked[s.page] = true
			continue
		}
		known[s.server], known[netip.AddrPortFrom(s.server.Addr(), 0)] = true, true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.known, g.asked = known, asked
	for server := range g.said {
		if !known[server] {
			delete(g.said, server)
		}
	}
	for p := range g.read {
		if !asked[p] {
			delete(g.read, p)
		}
	}
}

// say stores a load reported by the socket.
func (g *given) say(s load.Said) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.known[s.Server] {
		who := s.Server.String()
		if s.Server.Port() == 0 {
			who = s.Server.Addr().String()
		}
		return fmt.Errorf("server: %s: must be a backend on this host whose load is not asked by HTTP", who)
	}
	g.said[s.Server] = word{s.Given, g.clock.Now()}
	return nil
}

// tell stores a load read from a page.
func (g *given) tell(p page, value float32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked[p] {
		g.read[p] = word{value, g.clock.Now()}
	}
}

// pages returns the requested pages.
func (g *given) pages() map[page]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked // replaced, never changed
}

// of returns the load of a member that counts now: the newer of the reports for its port and for
// its address. It returns false if there is none, or it is stale.
func (g *given) of(s sayer, now time.Time) (float32, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.said[s.server]
	if whole := g.said[netip.AddrPortFrom(s.server.Addr(), 0)]; whole.at.After(w.at) {
		w = whole
	}
	if s.asked {
		w = g.read[s.page]
	}
	return w.value, !w.at.IsZero() && now.Sub(w.at) < s.stale
}
