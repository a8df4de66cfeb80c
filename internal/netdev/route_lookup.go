package netdev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routeSocket is a socket that looks up the routes of many destinations in the kernel: one message
// for each, many in a system call. So the kernel applies rules, more specific routes, and the
// selection of a source.
type routeSocket struct {
	fd       int
	sequence uint32
	request  []byte
	reply    []byte
}

// lookups is how many routes are requested at a time. The responses, of up to a kilobyte with the
// kernel's overhead, must fit into the socket's buffer of usually 208 KiB.
const lookups = 96

// openRouteSocket opens a socket in the network namespace of the calling thread.
func openRouteSocket() (*routeSocket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	// A lost response must not block for ever.
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}))
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("prepare netlink socket: %w", err)
	}
	return &routeSocket{fd: fd, reply: make([]byte, 1<<15)}, nil
}

func (s *routeSocket) close() { unix.Close(s.fd) }

// routes looks up the routes of n destinations, and calls found with the index and hop of each. A
// hop is zero if there is no route, or if the destination is local to this machine.
func (s *routeSocket) routes(n int, to func(int) netip.Addr, links map[int]netlink.Link, found func(int, hop)) error {
	for first := 0; first < n; first += lookups {
		if err := s.ask(first, min(n, first+lookups), to, links, found); err != nil {
			return fmt.Errorf("look up routes: %w", err)
		}
	}
	return nil
}

// ask looks up the routes from first up to end.
func (s *routeSocket) ask(first, end int, to func(int) netip.Addr, links map[int]netlink.Link, found func(int, hop)) error {
	base := s.sequence
	s.sequence += uint32(end - first)
	s.request = s.request[:0]
	for i := first; i < end; i++ {
		s.request = appendLookup(s.request, base+uint32(i-first), to(i))
	}
	if err := unix.Sendto(s.fd, s.request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for missing := end - first; missing > 0; {
		size, _, err := unix.Recvfrom(s.fd, s.reply, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		for b := s.reply[:size]; len(b) >= unix.SizeofNlMsghdr; {
			length, kind, sequence := int(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[8:])
			if length < unix.SizeofNlMsghdr || length > len(b) {
				return errors.New("a message is cut")
			}
			// Others are responses to lookups that were given up.
			if i := sequence - base; i < uint32(end-first) {
				missing--
				h := hop{}
				if kind == unix.RTM_NEWROUTE {
					h = hopOf(b[unix.SizeofNlMsghdr:length], links)
				}
				found(first+int(i), h)
			}
			b = b[min(len(b), (length+3)&^3):]
		}
	}
	return nil
}

// appendLookup appends the request for one destination (RTM_GETROUTE, rtnetlink(7)).
func appendLookup(b []byte, sequence uint32, to netip.Addr) []byte {
	ne, address := binary.NativeEndian, to.As16()
	family, raw := byte(unix.AF_INET6), address[:]
	if to.Is4() {
		family, raw = unix.AF_INET, address[12:]
	}
	b = ne.AppendUint32(b, uint32(unix.SizeofNlMsghdr+unix.SizeofRtMsg+unix.SizeofRtAttr+len(raw)))
	b = ne.AppendUint16(b, unix.RTM_GETROUTE)
	b = ne.AppendUint16(b, unix.NLM_F_REQUEST)
	b = ne.AppendUint32(ne.AppendUint32(b, sequence), 0)
	b = append(b, family, byte(8*len(raw)), 0, 0, 0, 0, 0, 0)
	b = ne.AppendUint32(b, 0)
	b = ne.AppendUint16(ne.AppendUint16(b, uint16(unix.SizeofRtAttr+len(raw))), unix.RTA_DST)
	return append(b, raw...)
}

// hopOf parses an RTM_NEWROUTE message after its header.
func hopOf(b []byte, links map[int]netlink.Link) hop {
	if len(b) < unix.SizeofRtMsg || b[7] != unix.RTN_UNICAST {
		return hop{}
	}
	var h hop
	mtu := 0
	eachAttribute(b[unix.SizeofRtMsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.RTA_OIF:
			h.ifindex = number(value)
		case unix.RTA_GATEWAY:
			h.gateway = address(value)
		case unix.RTA_VIA:
			if len(value) > 2 {
				h.gateway = address(value[2:])
			}
		case unix.RTA_PREFSRC:
			h.source = address(value)
		case unix.RTA_METRICS:
			eachAttribute(value, func(kind uint16, value []byte) {
				if kind == unix.RTAX_MTU {
					mtu = number(value)
				}
			})
		}
	})
	if l := links[h.ifindex]; l != nil {
		h.mtu = l.Attrs().MTU
	}
	if mtu > 0 && mtu < h.mtu {
		h.mtu = mtu
	}
	return h
}

// eachAttribute iterates over attributes (struct rtattr), up to a truncated one.
func eachAttribute(b []byte, f func(kind uint16, value []byte)) {
	for len(b) >= unix.SizeofRtAttr {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofRtAttr || length > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[unix.SizeofRtAttr:length])
		b = b[min(len(b), (length+3)&^3):]
	}
}

// number parses a 32-bit attribute; 0 if it is none.
func number(value []byte) int {
	if len(value) != 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(value))
}

// address parses an address attribute; zero if it is none.
func address(value []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(value)
	return a.Unmap()
}
