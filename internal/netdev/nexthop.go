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
	// Ifindex of the device that frames leave by: for a VLAN device its parent, for a bond a slave.
	Ifindex int
	// Tag of the VLAN: TPID:16 | TCI:16, 0 none.
	Tag uint32
	// MTU of the path in bytes: the route's if it has one, else the device's.
	MTU int
	// Source is the address that the kernel would send from, Own the Ethernet address of the
	// device.
	Source netip.Addr
	Own    [6]byte
	// Resolved: MAC is valid. Ifindex and MTU are known as soon as there is a route.
	Resolved bool
}

// resync is the interval of a full read, in case a notification was lost. Many destinations are
// read less often: the interval is at least resyncShare for each, of which the read takes about one
// five-hundredth.
const (
	resync      = 15 * time.Second
	resyncShare = 2 * time.Millisecond
)

// resyncAfter returns the interval of full reads for a number of destinations.
func resyncAfter(destinations int) time.Duration {
	return max(resync, time.Duration(destinations)*resyncShare)
}

// NextHops follows routes, neighbours and links and reports the next hops of wanted destinations.
// It makes the kernel resolve their neighbours and keep them resolved. It is safe for concurrent
// use.
type NextHops struct {
	poke chan struct{}

	mu   sync.Mutex
	want []netip.Addr
}

// NewNextHops returns a NextHops without destinations.
func NewNextHops() *NextHops { return &NextHops{poke: make(chan struct{}, 1)} }

// Want replaces the destinations. The slice must not be changed in place afterwards. Destinations
// that were wanted before are not read again, because the kernel reports changes.
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

// inOrder returns addresses sorted, without duplicates.
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

// Run follows the current namespace until ctx ends. changed receives the full map, one entry for
// each wanted destination, whenever it differs from the last. It is never called concurrently.
func (n *NextHops) Run(ctx context.Context, changed func(map[netip.Addr]NextHop)) error {
	return n.Follow(ctx, func(w Ways) { changed(w.Map()) })
}

// Follow is Run for many destinations, most of which have the same next hop.
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

// follow runs until ctx ends or the kernel drops the subscription, which happens when notifications
// overflow.
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
			// The next read is a full one.
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
			// New destinations are looked up.
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

// unread is the delay before the next attempt after a failed read.
const unread = time.Second

// drain takes queued events, so that a storm of notifications causes one read.
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
