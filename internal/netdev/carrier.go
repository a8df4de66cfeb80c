package netdev

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// WatchCarrier calls changed with whether an interface is up and has a carrier, immediately and at
// every notification, until ctx ends. A missing interface has none. changed is never called
// concurrently, and may get the same value twice.
func WatchCarrier(ctx context.Context, name string, changed func(bool)) error {
	for ctx.Err() == nil {
		links := make(chan netlink.LinkUpdate, 64)
		if err := netlink.LinkSubscribe(links, ctx.Done()); err != nil {
			return fmt.Errorf("follow links: %w", err)
		}
		changed(carrier(name))
		// The subscription ends when notifications overflow.
		for range links {
			changed(carrier(name))
		}
	}
	return nil
}

func carrier(name string) bool {
	l, err := netlink.LinkByName(name)
	return err == nil && l.Attrs().RawFlags&unix.IFF_UP != 0 && l.Attrs().RawFlags&unix.IFF_LOWER_UP != 0
}
