package loop

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/probe"
)

// Types of ICMP (RFC 792) and ICMPv6 (RFC 4443).
const (
	echoReply4, unreachable4, echo4         = 0, 3, 8
	unreachable6, echo6, echoReply6         = 1, 128, 129
	optionICMPFilter, echoHeader, echoNonce = 1, 8, 8
)

// echoes is the socket of a loop for ICMP probes in one family, for all of its targets.
type echoes struct {
	fd int
	// raw: the socket receives all matching ICMP packets of this machine, and id is its own;
	// otherwise the kernel filters them and sets the id.
	raw bool
	id  uint16
}

// openEchoes opens a raw socket, which also receives routers' Destination Unreachable. Without the
// privilege for it, it opens a datagram socket, if the machine allows that
// (net.ipv4.ping_group_range).
func openEchoes(v6 bool) (echoes, unix.Errno) {
	family, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	if v6 {
		family, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	const flags = unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	e := echoes{id: uint16(rand.Uint32())}
	var err error
	if e.fd, err = unix.Socket(family, unix.SOCK_RAW|flags, protocol); err == nil {
		e.raw = true
		if v6 {
			var filter unix.ICMPv6Filter
			for i := range filter.Data {
				filter.Data[i] = ^uint32(0)
			}
			for _, pass := range []int{unreachable6, echoReply6} {
				filter.Data[pass/32] &^= 1 << (pass % 32)
			}
			_ = unix.SetsockoptICMPv6Filter(e.fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &filter)
		} else {
			_ = unix.SetsockoptInt(e.fd, unix.SOL_RAW, optionICMPFilter, ^(1<<echoReply4 | 1<<unreachable4))
		}
		return e, 0
	}
	if err == unix.EPERM || err == unix.EACCES {
		e.fd, err = unix.Socket(family, unix.SOCK_DGRAM|flags, protocol)
	}
	if err != nil {
		errno, _ := err.(unix.Errno)
		return echoes{fd: -1}, errno
	}
	return e, 0
}

// sendEcho begins a probe by ICMP.
func (l *loop) sendEcho(i uint32) {
	s := &l.slots[i]
	v6 := s.address.Addr().Is6()
	e := l.echoesOf(v6)
	s.phase, s.nonce = talking, rand.Uint64()
	b := echoRequest(v6, e.id, uint16(i), s.nonce)
	var to unix.Sockaddr = &unix.SockaddrInet4{Addr: as4(s.address.Addr())}
	if v6 {
		to = &unix.SockaddrInet6{Addr: s.address.Addr().As16(), ZoneId: scope(s.address.Addr().Zone())}
	}
	if err := unix.Sendto(e.fd, b, unix.MSG_DONTWAIT, to); err != nil {
		errno, _ := err.(unix.Errno)
		if probe.Shortage(errno) {
			l.starved.Add(1)
		}
		l.finish(i, noConnection(errno))
	}
}

func (l *loop) echoesOf(v6 bool) *echoes {
	if v6 {
		return &l.echoes[1]
	}
	return &l.echoes[0]
}

// openEchoesOf opens the socket of a family, unless it is open.
func (l *loop) openEchoesOf(v6 bool) unix.Errno {
	e := l.echoesOf(v6)
	if e.fd > 0 {
		return 0
	}
	opened, err := openEchoes(v6)
	if err != 0 {
		return err
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: echo4Event}
	if v6 {
		event.Fd = echo6Event
	}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, opened.fd, &event); err != nil {
		_ = unix.Close(opened.fd)
		return unix.ENOMEM
	}
	l.sockets.Add(1)
	*e = opened
	return 0
}

// heardEchoes receives ICMP messages.
func (l *loop) heardEchoes(v6 bool) {
	e := l.echoesOf(v6)
	for range maxEvents {
		n, from, err := unix.Recvfrom(e.fd, l.scratch, unix.MSG_DONTWAIT)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return
		}
		b := l.scratch[:n]
		if e.raw && !v6 {
			b = payload4(b)
		}
		if h, ok := readEcho(v6, b); ok && (!e.raw || h.id == e.id) {
			l.heardEcho(h, source(from))
		}
	}
}

// heardEcho ends the probe that an answer or a router's error is about.
func (l *loop) heardEcho(h heard, from netip.Addr) {
	i := uint32(h.sequence)
	if int(i) >= len(l.slots) {
		return
	}
	s := &l.slots[i]
	if s.class != echo || s.phase == idle {
		return
	}
	// A sender outside the path can guess everything but the nonce. A router that quotes only 64
	// bits (RFC 792) does not prove that it is on the path. RFC 1812, section 4.3.2.3, has it quote
	// more.
	if !h.nonced {
		l.unproven.Add(1)
		return
	}
	if h.nonce != s.nonce {
		return
	}
	asked := s.address.Addr().WithZone("")
	switch {
	case h.words == "" && from == asked:
		l.finish(i, good("answered"))
	case h.words != "" && h.to == asked:
		l.finish(i, silence("%s", h.words))
	}
}

// heard is an ICMP message about an echo request.
type heard struct {
	id, sequence uint16
	// nonced: nonce is present; a router may have cut it off.
	nonced bool
	nonce  uint64
	// words is the reason of a router's error, about a request to an address; empty: the message is
	// the answer.
	words string
	to    netip.Addr
}

// readEcho parses an ICMP message; false: it is not about an echo request.
func readEcho(v6 bool, b []byte) (h heard, ok bool) {
	if len(b) < echoHeader {
		return h, false
	}
	reply, request, unreachable, words := byte(echoReply4), byte(echo4), byte(unreachable4), words4(b[1])
	if v6 {
		reply, request, unreachable, words = echoReply6, echo6, unreachable6, words6(b[1])
	}
	switch b[0] {
	case reply:
	case unreachable:
		h.words = words
		quoted := b[echoHeader:]
		if v6 {
			const header, icmp = 40, 58
			if len(quoted) < header+echoHeader || quoted[6] != icmp {
				return h, false
			}
			h.to, _ = netip.AddrFromSlice(quoted[24:40])
			b = quoted[header:]
		} else {
			const icmp = 1
			b = payload4(quoted)
			if len(b) < echoHeader || quoted[9] != icmp {
				return h, false
			}
			h.to, _ = netip.AddrFromSlice(quoted[16:20])
		}
		if b[0] != request {
			return h, false
		}
	default:
		return h, false
	}
	h.id, h.sequence = binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint16(b[6:])
	if h.nonced = len(b) >= echoHeader+echoNonce; h.nonced {
		h.nonce = binary.BigEndian.Uint64(b[echoHeader:])
	}
	return h, true
}

// words4 and words6 return the meaning of a code of Destination Unreachable (RFC 792, RFC 1812
// section 5.2.7.1; RFC 4443 section 3.1).
func words4(code byte) string {
	switch code {
	case 0, 6, 11:
		return "network unreachable"
	case 9, 10, 13:
		return "forbidden on the way"
	}
	return "host unreachable"
}

func words6(code byte) string {
	switch code {
	case 0:
		return "network unreachable"
	case 1, 5, 6:
		return "forbidden on the way"
	}
	return "host unreachable"
}

// echoRequest returns a request with its checksum; for ICMPv6 the kernel sets the checksum.
func echoRequest(v6 bool, id, sequence uint16, nonce uint64) []byte {
	b := make([]byte, echoHeader+echoNonce)
	if b[0] = echo4; v6 {
		b[0] = echo6
	}
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], sequence)
	binary.BigEndian.PutUint64(b[echoHeader:], nonce)
	if !v6 {
		sum := uint32(0)
		for i := 0; i < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
	}
	return b
}

// payload4 returns the bytes after an IPv4 header; nil: the header is malformed.
func payload4(b []byte) []byte {
	if len(b) < 20 || len(b) < int(b[0]&15)*4 || b[0]&15 < 5 {
		return nil
	}
	return b[int(b[0]&15)*4:]
}

func as4(a netip.Addr) (b [4]byte) {
	if a.Is4() {
		b = a.As4()
	}
	return b
}

// source returns the address of the sender.
func source(from unix.Sockaddr) netip.Addr {
	switch f := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(f.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(f.Addr)
	}
	return netip.Addr{}
}
