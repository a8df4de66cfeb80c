package netdev

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The netdev family of generic netlink (linux/netdev.h, Linux 6.3).
const (
	netdevFamily          = "netdev"
	netdevCmdDevGet       = 1
	netdevAttrIfindex     = 1
	netdevAttrXDPFeatures = 3

	// NETDEV_XDP_ACT_BASIC and NETDEV_XDP_ACT_REDIRECT.
	xdpBasic    = 1 << 0
	xdpRedirect = 1 << 1
)

// XDPSupport is the native XDP support of an interface's driver.
type XDPSupport struct {
	// Native: drop, pass and transmit. Redirect: to other devices.
	Native, Redirect bool
	// Attached is the id of the attached program, 0 for none.
	Attached uint32
}

// ReadXDPSupport reads the driver's features from the kernel, without attaching anything.
func ReadXDPSupport(name string) (XDPSupport, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return XDPSupport{}, fmt.Errorf("read interface %s: %w", name, err)
	}
	family, err := netlink.GenlFamilyGet(netdevFamily)
	if err != nil {
		return XDPSupport{}, fmt.Errorf("find netlink family %s: %w", netdevFamily, err)
	}
	request := nl.NewNetlinkRequest(int(family.ID), 0)
	request.AddData(genericHeader{command: netdevCmdDevGet, version: 1})
	request.AddData(nl.NewRtAttr(netdevAttrIfindex, nl.Uint32Attr(uint32(link.Attrs().Index))))
	messages, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return XDPSupport{}, fmt.Errorf("read XDP features of %s: %w", name, err)
	}
	var out XDPSupport
	for _, m := range messages {
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
		if err != nil {
			return XDPSupport{}, fmt.Errorf("read XDP features of %s: %w", name, err)
		}
		for _, a := range attrs {
			if a.Attr.Type == netdevAttrXDPFeatures && len(a.Value) >= 8 {
				features := binary.NativeEndian.Uint64(a.Value)
				out.Native, out.Redirect = features&xdpBasic != 0, features&xdpRedirect != 0
			}
		}
	}
	if x := link.Attrs().Xdp; x != nil && x.Attached {
		out.Attached = x.ProgId
	}
	return out, nil
}

// genericHeader is struct genlmsghdr (linux/genetlink.h). The library's own type leaves the
// reserved bytes undefined, which this family refuses.
type genericHeader struct{ command, version uint8 }

// Len implements nl.NetlinkRequestData.
func (genericHeader) Len() int { return nl.SizeofGenlmsg }

// Serialize implements nl.NetlinkRequestData.
func (h genericHeader) Serialize() []byte { return []byte{h.command, h.version, 0, 0} }

// ReadOffload reports whether a feature of a device is on.
func ReadOffload(namespace, dev string, o Offload) (bool, error) {
	// The number of each "get" command of ethtool is that of its "set" command - 1.
	value, err := readEthtool(namespace, dev, uint32(o)-1)
	return value != 0, err
}

// flagLRO is ETH_FLAG_LRO (linux/ethtool.h).
const flagLRO = 1 << 15

// ReadLRO reports whether large receive offload is on; native XDP refuses it.
func ReadLRO(namespace, dev string) (bool, error) {
	flags, err := readEthtool(namespace, dev, unix.ETHTOOL_GFLAGS)
	return flags&flagLRO != 0, err
}

func readEthtool(namespace, dev string, command uint32) (uint32, error) {
	value := ethtoolValue{cmd: command}
	req := ifreqData{data: unsafe.Pointer(&value)}
	if len(dev) >= len(req.name) {
		return 0, fmt.Errorf("read features of %s: device name longer than %d bytes", dev, len(req.name)-1)
	}
	copy(req.name[:], dev)
	err := In(namespace, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open socket: %w", err)
		}
		defer unix.Close(fd)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
			return fmt.Errorf("read feature %#x of %s: %w", command, dev, errno)
		}
		return nil
	})
	return value.data, err
}
