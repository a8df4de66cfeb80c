package netdev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Attributes of RTM_GETROUTE that identify a flow (linux/rtnetlink.h).
const (
	rtaIPProto = 27
	rtaSport   = 28
	rtaDport   = 29
)

// FlowHop returns the next hop to which the namespace's kernel forwards a TCP flow over IPv4 that
// arrives by a device. With L4 multipath hashing (net.ipv4.fib_multipath_hash_policy 1) it depends
// on the ports.
func (n *Namespace) FlowHop(dev string, source, destination netip.AddrPort) (via netip.Addr, err error) {
	link, err := n.link(dev)
	if err != nil {
		return via, err
	}
	if !source.Addr().Is4() || !destination.Addr().Is4() {
		return via, fmt.Errorf("flow %s to %s: must be IPv4", source, destination)
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_REQUEST)
	req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Src_len: 32, Dst_len: 32}})
	port := func(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }
	for _, a := range []struct {
		kind  int
		value []byte
	}{
		{unix.RTA_DST, destination.Addr().AsSlice()}, {unix.RTA_SRC, source.Addr().AsSlice()},
		{unix.RTA_IIF, binary.NativeEndian.AppendUint32(nil, uint32(link.Attrs().Index))},
		{rtaIPProto, []byte{unix.IPPROTO_TCP}}, {rtaSport, port(source.Port())}, {rtaDport, port(destination.Port())},
	} {
		req.AddData(nl.NewRtAttr(a.kind, a.value))
	}
	var answers [][]byte
	err = In(n.Name, func() (err error) {
		answers, err = req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
		return err
	})
	if err == nil {
		via, err = gatewayOf(answers)
	}
	if err != nil {
		return via, fmt.Errorf("next hop of %s to %s in %s: %w", source, destination, n.Name, err)
	}
	return via, nil
}

// gatewayOf returns the gateway of the first route.
func gatewayOf(answers [][]byte) (netip.Addr, error) {
	if len(answers) == 0 || len(answers[0]) < unix.SizeofRtMsg {
		return netip.Addr{}, errors.New("no route")
	}
	attrs, err := nl.ParseRouteAttr(answers[0][unix.SizeofRtMsg:])
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range attrs {
		if via, ok := netip.AddrFromSlice(a.Value); ok && a.Attr.Type == unix.RTA_GATEWAY {
			return via, nil
		}
	}
	return netip.Addr{}, errors.New("the route has no gateway")
}
