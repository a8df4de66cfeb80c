package netdev

import (
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// carried is the device that the frames of another device leave by. Programs can send frames only
// by real devices.
type carried struct {
	ifindex int
	tag     uint32 // TPID:16 | TCI:16, 0 none
}

// carriedBy returns the device that a device's frames leave by: for a VLAN device its parent, with
// the tag; for a bond the active slave, else one that is up and has a carrier. It returns false if
// there is none, and for tags within tags.
func carriedBy(links map[int]netlink.Link, ifindex int) (carried, bool) {
	out := carried{ifindex: ifindex}
	// The deepest supported stack is a VLAN on a bond on slaves.
	for range 4 {
		switch l := links[out.ifindex].(type) {
		case nil:
			return carried{}, false
		case *netlink.Vlan:
			if out.tag != 0 {
				return carried{}, false
			}
			out = carried{l.ParentIndex, tagOf(l)}
		case *netlink.Bond:
			slave, ok := slaveOf(links, l)
			if !ok {
				return carried{}, false
			}
			out.ifindex = slave
		default:
			return out, true
		}
	}
	return carried{}, false
}

// tagOf returns the tag of a VLAN device's frames, with priority 0.
func tagOf(l *netlink.Vlan) uint32 {
	protocol := uint32(l.VlanProtocol)
	if protocol == 0 {
		protocol = unix.ETH_P_8021Q
	}
	return protocol<<16 | uint32(l.VlanId&0xfff)
}

// slaveOf returns the slave that a bond sends by: the active one if there is one, else the usable
// one with the lowest index.
func slaveOf(links map[int]netlink.Link, bond *netlink.Bond) (int, bool) {
	best, ok := 0, false
	for index, l := range links {
		if l.Attrs().MasterIndex != bond.Index || !usable(l) {
			continue
		}
		if index == bond.ActiveSlave {
			return index, true
		}
		if !ok || index < best {
			best, ok = index, true
		}
	}
	return best, ok
}

func usable(l netlink.Link) bool {
	return l.Attrs().RawFlags&unix.IFF_UP != 0 && l.Attrs().RawFlags&unix.IFF_LOWER_UP != 0
}

// Slaves returns the devices that frames to an interface arrive by: the slaves of a bond, else the
// interface itself.
func Slaves(name string) ([]Interface, error) {
	device, err := FindInterface(name)
	if err != nil {
		return nil, err
	}
	all, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	names := slaveNames(all, device.Index)
	if names == nil {
		return []Interface{device}, nil
	}
	out := make([]Interface, 0, len(names))
	for _, n := range names {
		slave, err := FindInterface(n)
		if err != nil {
			return nil, err
		}
		out = append(out, slave)
	}
	return out, nil
}

// slaveNames returns the slaves of a bond, in the kernel's order; nil: the device is no bond.
func slaveNames(all []netlink.Link, ifindex int) []string {
	var names []string
	for _, l := range all {
		if l.Attrs().Index == ifindex && l.Type() == "bond" && names == nil {
			names = []string{}
		}
	}
	if names == nil {
		return nil
	}
	for _, l := range all {
		if l.Attrs().MasterIndex == ifindex {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}
