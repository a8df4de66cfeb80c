package loop

import (
	"net"
	"net/netip"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// class is a kind of socket.
type class uint8

const (
	tcp4 class = iota
	tcp6
	udp4
	udp6
	classes
	// echo has no socket of its own: the loop's is shared.
	echo
)

// phase is the state of a slot.
type phase uint8

const (
	idle phase = iota
	connecting
	talking
	// trying: the slot is an additional connection of another slot's probe, until it is
	// established.
	trying
)

// slot is a socket with the probe that uses it. Its index is the data of its epoll events and the
// number of its deadline in the wheel.
type slot struct {
	fd    int32
	class class
	phase phase
	id    uint32
	target
	began time.Duration
	// patient: it counts among the probes that wait for long; otherwise impatient is when it is to
	// be moved there. wasLate: the target's last probe timed out.
	patient, wasLate bool
	impatient        time.Duration
	// others are the slots of additional connections, the last of them tried at triedAt. of, in the
	// slot of such a connection, is the slot of its probe.
	tried   uint8
	others  [maxAgain]uint32
	of      uint32
	triedAt time.Duration
	// sent is how much of the request was sent, or -1 after all of it; got the received bytes of an
	// incomplete answer.
	sent int
	got  []byte
	// nonce is the nonce of the request, for DNS and ICMP.
	nonce uint64
}

// The calls below bypass Go's scheduler, because none of them blocks, and entering it costs more
// than some of them.

func connect(fd int32, to *unix.RawSockaddrInet6, size uintptr) unix.Errno {
	_, _, err := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(to)), size)
	return err
}

// unconnected is AF_UNSPEC: connecting to it resets a connection and frees its port (connect(2)).
var unconnected = unix.RawSockaddrInet6{Family: unix.AF_UNSPEC}

func disconnect(fd int32) unix.Errno {
	return connect(fd, &unconnected, unsafe.Sizeof(unix.RawSockaddrInet4{}))
}

func send(fd int32, b []byte) (int, unix.Errno) {
	n, _, err := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
		unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, 0, 0)
	return int(n), err
}

func receive(fd int32, b []byte) (int, unix.Errno) {
	n, _, err := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
		unix.MSG_DONTWAIT, 0, 0)
	return int(n), err
}

// pendingError returns and clears a socket's error.
func pendingError(fd int32) unix.Errno {
	var value int32
	size := uint32(unsafe.Sizeof(value))
	_, _, err := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_ERROR, uintptr(unsafe.Pointer(&value)),
		uintptr(unsafe.Pointer(&size)), 0)
	if err != 0 {
		return err
	}
	return unix.Errno(value)
}

// wait waits for epoll events, for at most milliseconds, -1: without limit. events must be in
// memory that does not move.
func wait(epoll int, events []unix.EpollEvent, milliseconds int) (int, unix.Errno) {
	if milliseconds == 0 {
		n, _, err := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(unsafe.SliceData(events))),
			uintptr(len(events)), 0, 0, 0)
		return int(n), err
	}
	n, _, err := unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(unsafe.SliceData(events))),
		uintptr(len(events)), uintptr(milliseconds), 0, 0)
	return int(n), err
}

// open opens a socket of a class.
func open(c class) (int32, unix.Errno) {
	family, kind := unix.AF_INET, unix.SOCK_STREAM
	if c == tcp6 || c == udp6 {
		family = unix.AF_INET6
	}
	if c == udp4 || c == udp6 {
		kind = unix.SOCK_DGRAM
	}
	fd, _, err := unix.RawSyscall(unix.SYS_SOCKET, uintptr(family), uintptr(kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC), 0)
	if err != 0 {
		return -1, err
	}
	switch c {
	case tcp4, tcp6:
		// With it, close sends a RST, too.
		_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		// On a connecting socket it delays the acknowledgement of the SYN-ACK: the next segment
		// sent, the request or the RST, carries it, or after 200 ms a segment of its own (Linux,
		// tcp_rcv_synsent_state_process).
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 1)
		// One segment needs no congestion control. The machine's default algorithm may pace and arm
		// timers.
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
	case udp4:
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	case udp6:
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	}
	return int32(fd), 0
}

// acknowledge sends the delayed acknowledgement of a connection immediately.
func acknowledge(fd int32) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) }

// fill writes an address in the kernel's form, and returns its size.
func fill(to *unix.RawSockaddrInet6, a netip.AddrPort) uintptr {
	if a.Addr().Is4() {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(to))
		*v4 = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: bigEndian(a.Port()), Addr: a.Addr().As4()}
		return unsafe.Sizeof(*v4)
	}
	*to = unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: bigEndian(a.Port()), Addr: a.Addr().As16(), Scope_id: scope(a.Addr().Zone())}
	return unsafe.Sizeof(*to)
}

// bigEndian returns a number whose bytes in memory are those of n in network order.
func bigEndian(n uint16) uint16 {
	b := [2]byte{byte(n >> 8), byte(n)}
	return *(*uint16)(unsafe.Pointer(&b))
}

// scope returns the number of a zone; 0: there is none.
func scope(zone string) uint32 {
	if zone == "" {
		return 0
	}
	if device, err := net.InterfaceByName(zone); err == nil {
		return uint32(device.Index)
	}
	n, _ := strconv.ParseUint(zone, 10, 32)
	return uint32(n)
}
