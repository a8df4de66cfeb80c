package lab_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/netdev"
)

// tunnelsMissing returns the kernel's error for the tunnel devices of plain servers, or nil if it
// supports them.
func tunnelsMissing(t *testing.T) error {
	t.Helper()
	ns, err := netdev.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	return ns.In(func() error {
		for _, command := range [][]string{
			{"link", "add", "name", "shunt4", "type", "ipip", "local", "192.0.2.1", "remote", "any"},
			{"link", "add", "name", "shunt6", "type", "ip6tnl", "mode", "any", "local", "2001:db8::1", "remote", "any"},
			{"fou", "add", "port", "6080", "gue"}, {"-6", "fou", "add", "port", "6080", "gue"},
		} {
			if out, err := exec.Command("ip", command...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %v: %w: %s", command, err, out)
			}
		}
		return nil
	})
}

// standIn decapsulates packets instead of the kernel's tunnel devices if the kernel lacks them:
// with TUN devices of the same names, and this test behind them. The command `ip` in its directory,
// which must be first in PATH, makes the TUN devices instead. All else is the kernel's: addresses,
// filters, routes, sockets.
type standIn struct {
	dir     string
	node    string
	devices map[string]*standInDevice // by name
}

// standInDevice is one device, and the sockets that receive its tunnels.
type standInDevice struct {
	tun     int
	sockets []int
	stop    chan struct{}
	done    sync.WaitGroup
}

// newStandIn writes the command `ip`: unchanged except for the three kinds of objects that the
// kernel lacks.
func newStandIn(t *testing.T, node string) *standIn {
	t.Helper()
	real, err := exec.LookPath("ip")
	if err != nil {
		t.Fatal(err)
	}
	s := &standIn{dir: t.TempDir(), node: shared.Topology.Name + "-" + node, devices: map[string]*standInDevice{}}
	script := fmt.Sprintf(`#!/bin/sh
case "$*" in
"link add name shunt4 type ipip local "*" remote any" | "link add name shunt6 type ip6tnl mode any local "*" remote any")
	exec %[1]s tuntap add dev "$4" mode tun ;;
"-4 fou "* | "-6 fou "*) exit 0 ;;
esac
exec %[1]s "$@"
`, real)
	if err := os.WriteFile(filepath.Join(s.dir, "ip"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.detach)
	return s
}

// attach decapsulates tunnel packets to an address, IP in IP or GUE, into a device that `ip` made.
func (s *standIn) attach(t *testing.T, name string, dip netip.Addr, gue bool) {
	t.Helper()
	d := &standInDevice{tun: -1, stop: make(chan struct{})}
	s.devices[name] = d
	err := netdev.In(s.node, func() (err error) {
		if d.tun, err = openTUN(name); err != nil {
			return err
		}
		if gue {
			return d.socket(dip, unix.SOCK_DGRAM, 0, guePayload)
		}
		if dip.Is4() {
			return d.socket(dip, unix.SOCK_RAW, unix.IPPROTO_IPIP, ip4Payload)
		}
		whole := func(b []byte) []byte { return b }
		return errors.Join(d.socket(dip, unix.SOCK_RAW, unix.IPPROTO_IPIP, whole), d.socket(dip, unix.SOCK_RAW, unix.IPPROTO_IPV6, whole))
	})
	if err != nil {
		t.Fatalf("stand in for %s: %v", name, err)
	}
}

// detach ends all of them.
func (s *standIn) detach() {
	for name, d := range s.devices {
		close(d.stop)
		d.done.Wait()
		for _, fd := range append(d.sockets, d.tun) {
			unix.Close(fd)
		}
		delete(s.devices, name)
	}
}

// socket receives packets to an address. inner finds the inner packet in the received data.
func (d *standInDevice) socket(dip netip.Addr, kind, protocol int, inner func([]byte) []byte) error {
	const guePort = 6080
	family, port := unix.AF_INET, 0
	if dip.Is6() {
		family = unix.AF_INET6
	}
	if kind == unix.SOCK_DGRAM {
		port = guePort
	}
	var to unix.Sockaddr = &unix.SockaddrInet6{Addr: dip.As16(), Port: port}
	if dip.Is4() {
		to = &unix.SockaddrInet4{Addr: dip.As4(), Port: port}
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	d.sockets = append(d.sockets, fd)
	if dip.Is6() && kind == unix.SOCK_DGRAM {
		// UDP_NO_CHECK6_RX, because tunnels have no checksum (RFC 6935).
		err = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1)
	}
	err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}), unix.Bind(fd, to))
	if err != nil {
		return err
	}
	d.done.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			select {
			case <-d.stop:
				return
			default:
			}
			n, err := unix.Read(fd, buf)
			if err != nil {
				if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
					continue
				}
				return
			}
			if packet := inner(buf[:n]); len(packet) > 0 {
				_, _ = unix.Write(d.tun, packet) // a device that is down accepts none
			}
		}
	})
	return nil
}

// ip4Payload returns the payload of an IPv4 packet.
func ip4Payload(b []byte) []byte {
	if len(b) < 20 {
		return nil
	}
	return b[min(len(b), int(b[0]&15)*4):]
}

// guePayload returns the payload after a GUE header, by the rules of Linux (net/ipv4/fou_core.c):
// version 0, no control message, no flags. It skips the data after the flags up to the header's
// length.
func guePayload(b []byte) []byte {
	if len(b) < 4 || b[0]>>5 != 0 || b[2] != 0 || b[3] != 0 || (b[1] != unix.IPPROTO_IPIP && b[1] != unix.IPPROTO_IPV6) {
		return nil
	}
	return b[min(len(b), 4+4*int(b[0]&31)):]
}

// openTUN opens a TUN device of the current namespace.
func openTUN(name string) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return fd, err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return fd, fmt.Errorf("attach to device %s: %w", name, err)
	}
	return fd, nil
}
