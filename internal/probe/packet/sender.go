package packet

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrBusy means that the device has no room at the moment.
var ErrBusy = errors.New("the device is busy")

// batch is the maximum number of frames sent in one call.
const batch = 64

// mmsghdr is struct mmsghdr of sendmmsg(2).
type mmsghdr struct {
	header unix.Msghdr
	length uint32
	_      uint32
}

// socket is a packet socket (packet(7)) that only sends.
type socket struct {
	fd       int
	messages [batch]mmsghdr
	vectors  [batch]unix.Iovec
	names    [batch]unix.RawSockaddrLinklayer
}

// NewSender opens a packet socket in the network namespace of the calling thread. Its frames bypass
// the device's queueing discipline.
func NewSender() (Sender, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("let a packet socket pass the queue: %w", err)
	}
	s := &socket{fd: fd}
	for i := range s.messages {
		s.names[i] = unix.RawSockaddrLinklayer{Family: unix.AF_PACKET, Halen: 6}
		s.messages[i].header = unix.Msghdr{
			Name: (*byte)(unsafe.Pointer(&s.names[i])), Namelen: uint32(unsafe.Sizeof(s.names[i])), Iov: &s.vectors[i], Iovlen: 1,
		}
	}
	return s, nil
}

// Send implements Sender, up to `batch` frames a call.
func (s *socket) Send(frames []Frame) (int, error) {
	frames = frames[:min(len(frames), batch)]
	if len(frames) == 0 {
		return 0, nil
	}
	for i, f := range frames {
		s.names[i].Ifindex = f.Ifindex
		s.vectors[i].Base = unsafe.SliceData(f.Data)
		s.vectors[i].SetLen(len(f.Data))
	}
	n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.messages)), uintptr(len(frames)), unix.MSG_DONTWAIT, 0, 0)
	switch errno {
	case 0:
		return int(n), nil
	case unix.EAGAIN, unix.ENOBUFS, unix.EINTR, unix.ENOMEM:
		return 0, ErrBusy
	}
	return 0, fmt.Errorf("send: %w", errno)
}

// Close implements Sender.
func (s *socket) Close() error { return unix.Close(s.fd) }
