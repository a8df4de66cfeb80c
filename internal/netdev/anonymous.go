package netdev

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// NewNamespace creates a network namespace without a name, which no tool lists. It ends with all
// its devices when it is closed, or with the process.
func NewNamespace() (*Namespace, error) {
	type made struct {
		fd  netns.NsHandle
		err error
	}
	done := make(chan made, 1)
	go func() {
		// The thread stays locked if it cannot return to its namespace, so that it ends with its
		// goroutine.
		runtime.LockOSThread()
		before, err := netns.Get()
		if err != nil {
			done <- made{err: err}
			return
		}
		defer before.Close()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- made{err: fmt.Errorf("unshare: %w", err)}
			return
		}
		fd, err := netns.Get()
		if back := netns.Set(before); back == nil {
			runtime.UnlockOSThread()
		}
		done <- made{fd, err}
	}()
	m := <-done
	if m.err != nil {
		return nil, fmt.Errorf("make a namespace without a name: %w", m.err)
	}
	nl, err := netlink.NewHandleAt(m.fd, unix.NETLINK_ROUTE)
	if err != nil {
		m.fd.Close()
		return nil, fmt.Errorf("open netlink in a namespace without a name: %w", err)
	}
	return &Namespace{Name: "(without a name)", fd: m.fd, nl: nl}, nil
}

// In runs f on a thread inside the namespace, as the function In does.
func (n *Namespace) In(f func() error) error {
	return inside(func() (netns.NsHandle, error) {
		fd, err := unix.FcntlInt(uintptr(n.fd), unix.F_DUPFD_CLOEXEC, 0)
		return netns.NsHandle(fd), err
	}, n.Name, f)
}
