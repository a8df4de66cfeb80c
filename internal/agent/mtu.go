package agent

import (
	"fmt"
	"net"
	"strings"
)

// Link is a device that underlay packets leave by.
type Link struct {
	Name string
	// MTU in bytes, including the IP header.
	MTU int
}

// LinksOf returns those of the named interfaces that exist.
func LinksOf(names ...string) (out []Link) {
	for _, name := range names {
		if i, err := net.InterfaceByName(name); err == nil {
			out = append(out, Link{Name: name, MTU: i.MTU})
		}
	}
	return out
}

// MTUFault returns which links are smaller than the MTU of the node's Network, in the form of
// NodeStatus.mtu_fault: "mtu 9000: eth0 has 1500". It is empty if none is. Packets of that size,
// which the MSS set by hosts permits to clients, do not pass such a link.
func MTUFault(planned uint32, links []Link) string {
	var small []string
	for _, l := range links {
		if l.MTU > 0 && uint32(l.MTU) < planned {
			small = append(small, fmt.Sprintf("%s has %d", l.Name, l.MTU))
		}
	}
	if len(small) == 0 {
		return ""
	}
	return fmt.Sprintf("mtu %d: %s", planned, strings.Join(small, ", "))
}
