// Package netdev is the only importer of netlink and network namespaces.
package netdev

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netns"
)

// NamespaceDir is the directory of iproute2's named namespaces.
const NamespaceDir = "/run/netns"

// In runs f on a thread inside the named namespace ("" is the current one). Sockets that f opens
// and processes that f starts stay there; goroutines that f starts do not.
func In(name string, f func() error) error {
	if name == "" {
		return f()
	}
	return inside(func() (netns.NsHandle, error) { return netns.GetFromPath(filepath.Join(NamespaceDir, name)) }, name, f)
}

// inside runs f on a thread inside the namespace that open returns.
func inside(open func() (netns.NsHandle, error), name string, f func() error) error {
	errs := make(chan error, 1)
	go func() {
		// The thread stays locked if it cannot return to its namespace, so that it ends with its
		// goroutine.
		runtime.LockOSThread()
		before, err := netns.Get()
		if err != nil {
			errs <- fmt.Errorf("open present namespace: %w", err)
			return
		}
		defer before.Close()
		target, err := open()
		if err != nil {
			errs <- fmt.Errorf("open namespace %s: %w", name, err)
			return
		}
		defer target.Close()
		if err := netns.Set(target); err != nil {
			errs <- fmt.Errorf("enter namespace %s: %w", name, err)
			return
		}
		err = f()
		if back := netns.Set(before); back == nil {
			runtime.UnlockOSThread()
		}
		errs <- err
	}()
	return <-errs
}

// Exists reports whether the named namespace exists.
func Exists(name string) bool {
	_, err := os.Stat(filepath.Join(NamespaceDir, name))
	return err == nil
}

// Dialer returns a dial function whose sockets are in the named namespace.
func Dialer(name string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var conn net.Conn
		err := In(name, func() (err error) {
			// Happy eyeballs would dial from other threads, outside the namespace.
			d := net.Dialer{FallbackDelay: -1}
			conn, err = d.DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
}
