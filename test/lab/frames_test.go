package lab_test

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/netdev"
)

// frames holds copies of the frames that pass a device, both ways.
type frames struct {
	fd   int
	done sync.WaitGroup
	stop chan struct{}

	mu  sync.Mutex
	all []frame
}

// frame is one frame, or the beginning of one that is longer than frameBytes.
type frame struct {
	data   []byte
	length int
	out    bool // sent by the node itself
}

// frameBytes of a frame are kept: complete frames except GSO packets.
const frameBytes = 2048

// listen copies a node's frames until the end of the test.
func listen(t *testing.T, node, device string) *frames {
	t.Helper()
	f := &frames{stop: make(chan struct{})}
	err := netdev.In(shared.Topology.Name+"-"+node, func() error {
		i, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if f.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(f.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
			// The timeout lets the reader check whether it should end.
			unix.SetsockoptTimeval(f.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}),
			unix.Bind(f.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}))
	})
	if err != nil {
		t.Fatalf("copy frames of %s: %v", node, err)
	}
	f.done.Go(func() {
		if err := f.read(); err != nil {
			t.Errorf("copy frames of %s by %s: %v", node, device, err)
		}
	})
	t.Cleanup(func() {
		close(f.stop)
		f.done.Wait()
		unix.Close(f.fd)
	})
	return f
}

// read copies frames until stop is closed.
func (f *frames) read() error {
	buf := make([]byte, frameBytes)
	for {
		select {
		case <-f.stop:
			return nil
		default:
		}
		n, from, err := unix.Recvfrom(f.fd, buf, unix.MSG_TRUNC)
		if err != nil {
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
				continue
			}
			return err
		}
		one := frame{data: append([]byte(nil), buf[:min(n, len(buf))]...), length: n}
		if l, ok := from.(*unix.SockaddrLinklayer); ok {
			one.out = l.Pkttype == unix.PACKET_OUTGOING
		}
		f.mu.Lock()
		f.all = append(f.all, one)
		f.mu.Unlock()
	}
}

// those returns the copied frames that match.
func (f *frames) those(want func(frame) bool) []frame {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []frame
	for _, one := range f.all {
		if want(one) {
			out = append(out, one)
		}
	}
	return out
}

// forget drops the copied frames.
func (f *frames) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = nil
}

// kind returns the frame's EtherType.
func (f frame) kind() uint16 {
	if len(f.data) < 14 {
		return 0
	}
	return binary.BigEndian.Uint16(f.data[12:])
}

// sendFrame sends a frame from a device of a node.
func sendFrame(t *testing.T, node, device string, data []byte) {
	t.Helper()
	err := netdev.In(shared.Topology.Name+"-"+node, func() error {
		i, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, data, 0, &unix.SockaddrLinklayer{Ifindex: i.Index})
	})
	if err != nil {
		t.Fatalf("send a frame by %s of %s: %v", device, node, err)
	}
}
