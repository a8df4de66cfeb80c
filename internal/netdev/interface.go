package netdev

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Interface describes the device that an agent runs on.
type Interface struct {
	Name  string
	Index int
	// MAC is zero for devices without Ethernet addresses.
	MAC [6]byte
	// MTU in bytes, without the link layer header.
	MTU int
	// Driver is ethtool's driver name, else the kernel's device type: "ixgbe", "veth".
	Driver string
	Up     bool
	// Addresses of global scope.
	Addresses []netip.Addr
}

// FindInterface returns an interface of the current namespace. If it does not exist, the error
// lists the existing ones.
func FindInterface(name string) (Interface, error) {
	link, err := netlink.LinkByName(name)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return Interface{}, fmt.Errorf("interface %s: there is none; this machine has %s", name, interfaceNames())
	}
	if err != nil {
		return Interface{}, fmt.Errorf("read interface %s: %w", name, err)
	}
	a := link.Attrs()
	out := Interface{
		Name: a.Name, Index: a.Index, MTU: a.MTU, Driver: driver(link),
		Up: a.Flags&unix.IFF_UP != 0,
	}
	copy(out.MAC[:], a.HardwareAddr)
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return Interface{}, fmt.Errorf("read addresses of interface %s: %w", name, err)
	}
	for _, addr := range addrs {
		if ip, ok := netip.AddrFromSlice(addr.IP); ok && addr.Scope == unix.RT_SCOPE_UNIVERSE {
			out.Addresses = append(out.Addresses, ip.Unmap())
		}
	}
	return out, nil
}

func interfaceNames() string {
	links, err := netlink.LinkList()
	if err != nil || len(links) == 0 {
		return "no interfaces"
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Attrs().Name)
	}
	return strings.Join(names, ", ")
}

// driver uses an ioctl, because /sys shows the namespace that it was mounted in, which may be
// another one.
func driver(link netlink.Link) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return link.Type()
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, link.Attrs().Name)
	if err != nil {
		return link.Type()
	}
	return unix.ByteSliceToString(info.Driver[:])
}

// XDPMode returns how a program is attached to an interface: native, generic, or empty if none is
// or the mode is unknown.
func XDPMode(name string) string {
	l, err := netlink.LinkByName(name)
	if err != nil || l.Attrs().Xdp == nil || !l.Attrs().Xdp.Attached {
		return ""
	}
	switch l.Attrs().Xdp.AttachMode {
	case nl.XDP_ATTACHED_DRV:
		return "native"
	case nl.XDP_ATTACHED_SKB:
		return "generic"
	}
	return ""
}
