package netdev

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shuntlb/shunt/internal/notify"
)

// NextHop is how the kernel would send to a destination.
type NextHop struct {
	// MAC of the neighbour.
	MAC [6]byte
	// Ifindex of the device that frames leave by: of a VLAN device the parent, of a bond a slave.
	Ifindex int
	// Tag of the VLAN: TPID:16 | TCI:16, 0 none.
	Tag uint32
	// MTU of the path in bytes: the route's where it has one, else the device's.
	MTU int
	// Source is the address that the kernel would send from, Own the Ethernet address of the device.
	Source netip.Addr
	Own    [6]byte
	// Resolved: MAC is valid. Ifindex and MTU are known as soon as there is a route.
	Resolved bool
}

// resync is how often everything is read afresh, should a notification have been lost. Many destinations are read afresh less
// often: each takes resyncShare, of which reading it is about one in five hundred.
const (
	resync      = 15 * time.Second
	resyncShare = 2 * time.Millisecond
)

// resyncAfter is when so many destinations are read afresh.
func resyncAfter(destinations int) time.Duration {
	return max(resync, time.Duration(destinations)*resyncShare)
}

// NextHops follows routes, neighbours and links and tells how wanted destinations are reached. The kernel is made to
// resolve their neighbours and to keep them resolved. It is safe for concurrent use.
type NextHops struct {
	poke chan struct{}

	mu   sync.Mutex
	want []netip.Addr
}

// NewNextHops makes a follower that wants nothing.
func NewNextHops() *NextHops { return &NextHops{poke: make(chan struct{}, 1)} }

// Want replaces the destinations, which nobody changes in place afterwards. Nothing is read again of those of before: the kernel
// tells what changes.
func (n *NextHops) Want(destinations []netip.Addr) {
	sorted := inOrder(destinations)
	n.mu.Lock()
	same := slices.Equal(n.want, sorted)
	if !same {
		n.want = sorted
	}
	n.mu.Unlock()
	if same {
		return
	}
	notify.Send(n.poke)
}

// inOrder are addresses in order, each once.
func inOrder(addresses []netip.Addr) []netip.Addr {
	for i := 1; i < len(addresses); i++ {
		if !addresses[i-1].Less(addresses[i]) {
			sorted := slices.Clone(addresses)
			slices.SortFunc(sorted, netip.Addr.Compare)
			return slices.Compact(sorted)
		}
	}
	return addresses
}

func (n *NextHops) wanted() []netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.want
}

// Run follows the present namespace until ctx ends. changed gets the full map, one entry for each wanted destination,
// whenever it differs from the last; it is never called concurrently.
func (n *NextHops) Run(ctx context.Context, changed func(map[netip.Addr]NextHop)) error {
	return n.Follow(ctx, func(w Ways) { changed(w.Map()) })
}

// Follow is Run for many destinations, of which most are reached alike.
func (n *NextHops) Follow(ctx context.Context, changed func(Ways)) error {
	told, last := false, Ways{}
	for ctx.Err() == nil {
		err := n.follow(ctx, func(w Ways) {
			if !told || !w.equal(last) {
				told, last = true, w
				changed(w)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// follow runs until ctx ends or the kernel drops the subscription, as it does when notifications overflow.
func (n *NextHops) follow(ctx context.Context, read func(Ways)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := subscribe(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTimer(resync)
	defer tick.Stop()
	routes, err := openRouteSocket()
	if err != nil {
		return err
	}
	defer routes.close()
	hops := hopTable{kernel: system{routes}}
	old := stale{all: true}
	for {
		now, err := hops.read(n.wanted(), old)
		switch {
		case err != nil:
			// The next reading is of all.
			tick.Reset(unread)
		case old.all:
			tick.Reset(resyncAfter(now.Len()))
		}
		if err == nil {
			read(now)
		}
		old = stale{all: err != nil}
		select {
		case <-ctx.Done():
			return nil
		case <-n.poke:
			// What is new is looked up.
		case <-tick.C:
			old.all = true
		case e, open := <-events:
			if !open {
				return nil
			}
			e.mark(&old)
		}
		drain(events, &old)
	}
}

// unread is how long the kernel is left alone when it could not be read.
const unread = time.Second

// drain takes what is queued, so that a storm of notifications is one reading.
func drain(events <-chan event, old *stale) {
	for {
		select {
		case e, open := <-events:
			if !open {
				return
			}
			e.mark(old)
		default:
			return
		}
	}
}

// system is the kernel.
type system struct{ *routeSocket }

func (system) links() map[int]netlink.Link {
	out := map[int]netlink.Link{}
	if links, err := netlink.LinkList(); err == nil {
		for _, l := range links {
			out[l.Attrs().Index] = l
		}
	}
	return out
}

func (system) neighbours() (map[neighbour]link, error) { return neighbours() }

func (system) keep(n neighbour) { keepResolved(n) }
