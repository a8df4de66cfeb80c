package lab_test

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// The mux replies to a datagram that does not fit the tunnel. The client's kernel learns the size
// that does, and a datagram of that size arrives.
func TestTooBigIsTold(t *testing.T) {
	logsOnFailure(t, shared)
	echo := service{name: "echo-size", number: 75, protocol: "udp", port: 5007, dipPort: 7, backends: []string{"host1-vm1"}}
	echo.up(t)
	for i, target := range echo.targets() {
		headers, fits := 28, 1480 // IPv4 in IPv4
		level, discover, ask := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_MTU
		if i == 1 { // IPv6 in IPv6
			headers, fits = 48, 1460
			level, discover, ask = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_MTU
		}
		conn, err := dial("udp", target)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		option := func(do func(fd int) error) {
			t.Helper()
			raw, err := conn.(syscall.Conn).SyscallConn()
			if err == nil {
				if e := raw.Control(func(fd uintptr) { err = do(int(fd)) }); e != nil {
					err = e
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		option(func(fd int) error { return unix.SetsockoptInt(fd, level, discover, unix.IP_PMTUDISC_DO) })
		large := make([]byte, 1500-headers)
		await(t, "the client's kernel knows the path MTU to "+target, func(context.Context) error {
			_, _ = conn.Write(large) // it fails when the kernel has the size
			mtu := 0
			option(func(fd int) (err error) {
				mtu, err = unix.GetsockoptInt(fd, level, ask)
				return err
			})
			if mtu != fits {
				return fmt.Errorf("it is %d, expected %d", mtu, fits)
			}
			return nil
		})
		echoOnce(t, "udp", target, strings.Repeat("x", fits-headers))
	}
}

// A lab of jumbo frames: packets that fit pass mux and host unfragmented, TCP and UDP.
func TestJumboFrames(t *testing.T) {
	topology := lab.DefaultTopology()
	topology.Name, topology.MTU, topology.Muxes, topology.Hosts.Count = fmt.Sprintf("jumbo%d", os.Getpid()), 9000, 1, 1
	topology.Routers.Daemon = daemon()
	t.Cleanup(func() {
		if err := lab.Down(context.Background(), topology.Name); err != nil {
			t.Error(err)
		}
	})
	l, err := lab.Up(t.Context(), topology, lab.Options{Binary: program})
	if err != nil {
		t.Fatal(err)
	}
	logsOnFailure(t, l)
	web := service{name: "web", number: 10, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1"}}
	echo := service{name: "echo", number: 11, protocol: "udp", port: 5007, dipPort: 7, backends: []string{"host1-vm1"}}
	for _, s := range []service{web, echo} {
		if _, err := l.Apply(t.Context(), s.yaml(t)); err != nil {
			t.Fatal(err)
		}
		if err := l.WaitRoutes(t.Context(), s.number, 1); err != nil {
			t.Fatal(err)
		}
	}
	for _, target := range web.targets() {
		if err := l.FirstAnswer(t.Context(), "client1", target); err != nil {
			t.Error(err)
		}
	}
	for _, target := range echo.targets() {
		size := 9000 - 20 - 28
		if netip.MustParseAddrPort(target).Addr().Is6() {
			size = 9000 - 40 - 48
		}
		await(t, "an echo of a jumbo datagram from "+target, func(ctx context.Context) error {
			return echoJumbo(ctx, topology.Name+"-client1", target, strings.Repeat("jumbo", size)[:size])
		})
	}
}

// echoJumbo sends a datagram from a namespace and expects it back.
func echoJumbo(ctx context.Context, namespace, target, message string) error {
	conn, err := netdev.Dialer(namespace)(ctx, "udp", target)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, message); err != nil {
		return err
	}
	buf := make([]byte, len(message)+1)
	n, err := conn.Read(buf)
	if err == nil && string(buf[:n]) != message {
		err = fmt.Errorf("got %d other bytes", n)
	}
	return err
}
