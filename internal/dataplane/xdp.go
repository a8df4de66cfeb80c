package dataplane

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// XDPMode is how the program is attached.
type XDPMode string

// Native runs in the driver; generic behind it, slower, on any driver.
const (
	XDPNative  XDPMode = "native"
	XDPGeneric XDPMode = "generic"
)

func (m XDPMode) flags() (link.XDPAttachFlags, error) {
	switch m {
	case XDPNative, "":
		return link.XDPDriverMode, nil
	case XDPGeneric:
		return link.XDPGenericMode, nil
	}
	return 0, fmt.Errorf("XDP mode %q: must be native or generic", string(m))
}

// attachXDP makes prog the program of the interface: by replacing the one behind the pinned link, in one step and
// without a lost packet, else by a new link that it pins.
func attachXDP(prog *ebpf.Program, ifindex int, mode XDPMode, pin string, log *slog.Logger) (link.Link, error) {
	flags, err := mode.flags()
	if err != nil {
		return nil, err
	}
	old, err := takeOwnLink(pin, log, muxLinkPrograms...)
	if err != nil {
		return nil, err
	}
	if old != nil {
		if xdpIfindex(old) == ifindex {
			if err := old.Update(prog); err != nil {
				old.Close()
				return nil, fmt.Errorf("replace XDP program: %w", err)
			}
			return old, nil
		}
		// The interface was deleted or is another one now.
		if err := dropLink(old); err != nil {
			return nil, err
		}
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: ifindex, Flags: flags})
	if err != nil {
		return nil, attachError(err, ifindex, mode)
	}
	if err := l.Pin(pin); err != nil {
		l.Close()
		return nil, fmt.Errorf("pin XDP link: %w", err)
	}
	return l, nil
}

func attachError(err error, ifindex int, mode XDPMode) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP) && mode != XDPGeneric:
		return fmt.Errorf("attach XDP to interface %d: its driver has no native XDP; --xdp-mode generic works without, but is slower: %w", ifindex, err)
	case errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST):
		return fmt.Errorf("attach XDP to interface %d: another XDP program is attached (see ip link show): %w", ifindex, err)
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE) || errors.Is(err, unix.E2BIG):
		return fmt.Errorf("attach XDP to interface %d: the driver refused: %w", ifindex, err)
	}
	return fmt.Errorf("attach XDP to interface %d: %w", ifindex, err)
}

// xdpIfindex is the interface a link is attached to, 0 when that is gone.
func xdpIfindex(l link.Link) int {
	info, err := l.Info()
	if err != nil || info.XDP() == nil {
		return 0
	}
	return int(info.XDP().Ifindex)
}

// dropLink detaches and unpins.
func dropLink(l link.Link) error {
	defer l.Close()
	if err := l.Unpin(); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unpin XDP link: %w", err)
	}
	if err := l.Detach(); err != nil && !errors.Is(err, unix.ENOLINK) {
		return fmt.Errorf("detach XDP link: %w", err)
	}
	return nil
}
