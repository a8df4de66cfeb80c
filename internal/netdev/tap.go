package netdev

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Tap is a device from which this process reads every frame that the kernel sends by it. It ends
// with the process.
type Tap struct {
	file  *os.File
	name  string
	index int
}

// tapRequest is struct ifreq as TUNSETIFF and SIOCSIFFLAGS take it.
type tapRequest struct {
	name  [unix.IFNAMSIZ]byte
	flags uint16
	_     [22]byte
}

// OpenTap creates a device in the namespace of the calling thread and sets it up. A %d in the name
// is replaced by a free number. The kernel sends nothing by it on its own, because it has no
// address.
func OpenTap(name string) (*Tap, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	r := tapRequest{flags: unix.IFF_TAP | unix.IFF_NO_PI}
	if len(name) >= len(r.name) {
		unix.Close(fd)
		return nil, fmt.Errorf("make device %s: its name has more than %d bytes", name, len(r.name)-1)
	}
	copy(r.name[:], name)
	if err := ioctl(fd, unix.TUNSETIFF, &r); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make device %s: %w", name, err)
	}
	t := &Tap{file: os.NewFile(uintptr(fd), "/dev/net/tun"), name: unix.ByteSliceToString(r.name[:])}
	if err := t.up(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// up disables IPv6 on the device, sets it up and reads its index.
func (t *Tap) up() error {
	if err := os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", t.name, "disable_ipv6"), []byte("1"), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("take IPv6 off device %s: %w", t.name, err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	r := tapRequest{flags: unix.IFF_UP | unix.IFF_NOARP}
	copy(r.name[:], t.name)
	if err := ioctl(fd, unix.SIOCSIFFLAGS, &r); err != nil {
		return fmt.Errorf("bring up device %s: %w", t.name, err)
	}
	i, err := net.InterfaceByName(t.name)
	if err != nil {
		return fmt.Errorf("find device %s: %w", t.name, err)
	}
	t.index = i.Index
	return nil
}

func ioctl(fd int, request uintptr, r *tapRequest) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(r))); errno != 0 {
		return errno
	}
	return nil
}

// Index returns the device's index.
func (t *Tap) Index() int { return t.index }

// Read waits for a frame, including its Ethernet header. It fails with os.ErrClosed after the
// device was closed.
func (t *Tap) Read(b []byte) (int, error) { return t.file.Read(b) }

// Close removes the device.
func (t *Tap) Close() error { return t.file.Close() }

// FrameSender sends frames by one device, through its queue and the programs attached to it.
type FrameSender struct {
	fd int
	to unix.SockaddrLinklayer
}

// NewFrameSender opens a packet socket for IPv4 in the namespace of the calling thread, by the
// device of this index.
func NewFrameSender(index int) (*FrameSender, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	return &FrameSender{fd: fd, to: unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_IP), Ifindex: index, Halen: 6}}, nil
}

// Send sends a frame. It does not wait: a device without room is an error.
func (s *FrameSender) Send(frame []byte) error {
	if err := unix.Sendto(s.fd, frame, unix.MSG_DONTWAIT, &s.to); err != nil {
		return fmt.Errorf("send a frame: %w", err)
	}
	return nil
}

// Close closes the socket.
func (s *FrameSender) Close() error { return unix.Close(s.fd) }

// networkOrder returns a number whose bytes in memory are in network order.
func networkOrder(v uint16) uint16 {
	b := [2]byte{byte(v >> 8), byte(v)}
	return *(*uint16)(unsafe.Pointer(&b))
}
