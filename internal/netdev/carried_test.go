package netdev

import (
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func attrs(index, parent, master int, flags uint32) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Index, a.ParentIndex, a.MasterIndex, a.RawFlags, a.Name = index, parent, master, flags, string(rune('a'+index))
	return a
}

// TestCarriedBy: this kernel has neither VLAN devices nor bonds, so the links are made up.
func TestCarriedBy(t *testing.T) {
	const up = unix.IFF_UP | unix.IFF_LOWER_UP
	links := map[int]netlink.Link{}
	add := func(l netlink.Link) { links[l.Attrs().Index] = l }
	add(&netlink.Device{LinkAttrs: attrs(1, 0, 0, up)})
	add(&netlink.Vlan{LinkAttrs: attrs(2, 1, 0, up), VlanId: 100})
	add(&netlink.Vlan{LinkAttrs: attrs(3, 1, 0, up), VlanId: 7, VlanProtocol: netlink.VLAN_PROTOCOL_8021AD})
	add(&netlink.Vlan{LinkAttrs: attrs(4, 2, 0, up), VlanId: 5})
	bond := netlink.NewLinkBond(attrs(10, 0, 0, up))
	bond.ActiveSlave = 12
	add(bond)
	add(&netlink.Device{LinkAttrs: attrs(11, 0, 10, up)})
	add(&netlink.Device{LinkAttrs: attrs(12, 0, 10, up)})
	add(&netlink.Vlan{LinkAttrs: attrs(13, 10, 0, up), VlanId: 9})
	lacp := netlink.NewLinkBond(attrs(20, 0, 0, up))
	lacp.ActiveSlave = -1
	add(lacp)
	add(&netlink.Device{LinkAttrs: attrs(21, 0, 20, unix.IFF_UP)})
	add(&netlink.Device{LinkAttrs: attrs(22, 0, 20, up)})
	dead := netlink.NewLinkBond(attrs(30, 0, 0, up))
	add(dead)
	add(&netlink.Device{LinkAttrs: attrs(31, 0, 30, 0)})
	for _, c := range []struct {
		ifindex int
		want    carried
		ok      bool
	}{
		{1, carried{1, 0}, true},
		{2, carried{1, 0x8100_0064}, true},
		{3, carried{1, 0x88a8_0007}, true},
		{4, carried{}, false}, // a tag within a tag
		{10, carried{12, 0}, true},
		{13, carried{12, 0x8100_0009}, true},
		{20, carried{22, 0}, true}, // no active slave: one that is up
		{30, carried{}, false},
		{99, carried{}, false},
	} {
		if got, ok := carriedBy(links, c.ifindex); got != c.want || ok != c.ok {
			t.Errorf("interface %d: %v %v, expected %v %v", c.ifindex, got, ok, c.want, c.ok)
		}
	}
	var all []netlink.Link
	for _, i := range []int{1, 10, 11, 12, 30, 31} {
		all = append(all, links[i])
	}
	if got := slaveNames(all, 10); !slices.Equal(got, []string{"l", "m"}) {
		t.Errorf("slaves of the bond: %v", got)
	}
	if got := slaveNames(all, 1); got != nil {
		t.Errorf("slaves of a plain device: %v", got)
	}
}
