package gobgp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/bgp"
)

// TestGuardedSockets: a guarded socket receives UDP packets with a TTL or hop limit of 255, and no
// others. Other sockets are not changed.
func TestGuardedSockets(t *testing.T) {
	listen := func() *net.UDPConn {
		t.Helper()
		c, err := net.ListenUDP("udp", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	guarded, other := listen(), listen()
	port := func(c *net.UDPConn) int { return c.LocalAddr().(*net.UDPAddr).Port }
	if n, err := guardSockets(port(guarded)); n != 1 || err != nil {
		t.Fatalf("%d sockets, %v", n, err)
	}
	for _, host := range []string{"127.0.0.1", "::1"} {
		for _, c := range []struct {
			to   *net.UDPConn
			want string
		}{{guarded, "255 "}, {other, "0 1 254 255 "}} {
			from, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: net.ParseIP(host), Port: port(c.to)})
			if err != nil {
				t.Fatal(err)
			}
			defer from.Close()
			raw, err := from.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			for _, ttl := range []int{0, 1, 254, 255} {
				raw.Control(func(fd uintptr) {
					level, option := unix.IPPROTO_IP, unix.IP_TTL
					if host == "::1" {
						level, option = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
					}
					// 0 is the system's default, which is different from 255; Linux refuses it for
					// IPv4.
					if ttl != 0 {
						err = unix.SetsockoptInt(int(fd), level, option, ttl)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := from.Write([]byte(fmt.Sprintf("%d ", ttl))); err != nil {
					t.Fatal(err)
				}
			}
			// The loopback keeps the order: after the last packet nothing follows.
			got, buffer := "", make([]byte, 64)
			for !strings.HasSuffix(got, "255 ") {
				c.to.SetReadDeadline(time.Now().Add(time.Minute))
				n, err := c.to.Read(buffer)
				if err != nil {
					t.Fatalf("%s: after %q: %v", host, got, err)
				}
				got += string(buffer[:n])
			}
			if got != c.want {
				t.Errorf("%s: received %q, want %q", host, got, c.want)
			}
		}
	}
}

// TestBFDFromBehindARouter: BFD packets of the router whose TTL was lowered on the way do not
// count, so that BFD goes down. With 255 it comes back.
func TestBFDFromBehindARouter(t *testing.T) {
	if !ownNamespace(t) {
		return
	}
	r := newRouter(t, "md5secret")
	ctx := context.Background()
	s := New(Options{ListenPort: 179, Logger: slog.New(slog.NewTextHandler(os.Stdout, nil))})
	defer s.Close()
	if err := s.Set(ctx, wanted("md5secret", "203.0.113.10")); err != nil {
		t.Fatal(err)
	}
	peer := func() bgp.PeerStatus {
		t.Helper()
		st, err := s.Status(ctx)
		if err != nil || len(st.Peers) != 1 {
			t.Fatalf("status %+v, %v", st, err)
		}
		return st.Peers[0]
	}
	r.until("BFD comes up", func() bool { return peer().BFD == "up" })
	command(t, "nft", "add table ip far; add chain ip far in { type filter hook input priority -300; }; add rule ip far in udp dport 3784 ip ttl set 254")
	r.until("BFD packets with another TTL do not count", func() bool { return peer().BFD == "down" && peer().Losses == 1 })
	command(t, "nft", "delete table ip far")
	r.until("BFD comes up again", func() bool { return peer().BFD == "up" })
}
