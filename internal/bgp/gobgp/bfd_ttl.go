package gobgp

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	// bfdPort is the port of single-hop BFD (RFC 5881 section 4).
	bfdPort = 3784
	// bfdTTL is the required TTL or hop limit of BFD packets, because a router in between would
	// have decremented it (RFC 5881 section 5). GoBGP does not check it.
	bfdTTL = 255
	// bfdSocketPoll is the interval of the search for the BFD socket, which GoBGP opens by itself
	// within a second after BFD begins.
	bfdSocketPoll = 20 * time.Millisecond
	// bfdSocketWait is the maximum time of the search.
	bfdSocketWait = 5 * time.Second
)

// onLink returns a filter that accepts UDP packets whose IPv4 TTL or IPv6 hop limit is bfdTTL, for
// a socket of either family.
func onLink() ([]unix.SockFilter, error) {
	const network = 0xfff00000 // SKF_NET_OFF: offsets count from the IP header
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: network, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 6, SkipTrue: 2},
		bpf.LoadAbsolute{Off: network + 8, Size: 1}, // TTL
		bpf.Jump{Skip: 1},
		bpf.LoadAbsolute{Off: network + 7, Size: 1}, // hop limit
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: bfdTTL, SkipFalse: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return nil, fmt.Errorf("assemble filter: %w", err)
	}
	out := make([]unix.SockFilter, len(program))
	for i, in := range program {
		out[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return out, nil
}

// guardSockets attaches the filter to all UDP sockets of this process that are bound to a port, and
// returns their number.
func guardSockets(port int) (n int, err error) {
	filter, err := onLink()
	if err != nil {
		return 0, err
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, fmt.Errorf("list sockets: %w", err)
	}
	for _, e := range entries {
		number, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// Duplicate it, because the number may be reused for another file at any time.
		fd, err := unix.FcntlInt(uintptr(number), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if boundUDP(fd, port) {
			n++
			err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
		}
		unix.Close(fd)
		if err != nil {
			return n, fmt.Errorf("attach filter: %w", err)
		}
	}
	return n, nil
}

// boundUDP returns true if a file is a UDP socket that is bound to a port.
func boundUDP(fd, port int) bool {
	if protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || protocol != unix.IPPROTO_UDP {
		return false
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return false
	}
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		return a.Port == port
	case *unix.SockaddrInet6:
		return a.Port == port
	}
	return false
}

// guardBFD waits until GoBGP has opened its BFD socket, and then makes the kernel drop BFD packets
// that passed a router.
func (s *Speaker) guardBFD(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, bfdSocketWait)
	defer cancel()
	pace := time.NewTicker(bfdSocketPoll)
	defer pace.Stop()
	for {
		n, err := guardSockets(bfdPort)
		if err != nil {
			s.options.Logger.Error("BFD packets of any TTL are accepted", "error", err)
		}
		if n > 0 || err != nil {
			return
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
			return
		}
	}
}
