package lab_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/wire"
)

// floodSessions is the session capacity of flooded muxes. Half of it is for untrusted sessions.
const floodSessions = 4096

// spoofer sends segments with the addresses of nonexistent clients, from the router, to all muxes.
type spoofer struct {
	fds      []int
	devices  []int
	to, from [][6]byte
	next     uint32
}

// newSpoofer opens a socket for each mux until the end of the test.
func newSpoofer(t *testing.T) *spoofer {
	t.Helper()
	s := &spoofer{}
	for i := 1; i <= shared.Topology.Muxes; i++ {
		mux := fmt.Sprintf("mux%d", i)
		s.to = append(s.to, [6]byte(hardwareAddress(t, mux, lab.Uplink)))
		s.from = append(s.from, [6]byte(hardwareAddress(t, "router1", mux)))
		err := netdev.In(shared.Topology.Name+"-router1", func() error {
			dev, err := net.InterfaceByName(mux)
			if err != nil {
				return err
			}
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			s.fds, s.devices = append(s.fds, fd), append(s.devices, dev.Index)
			t.Cleanup(func() { unix.Close(fd) })
			return nil
		})
		if err != nil {
			t.Fatalf("a socket to %s: %v", mux, err)
		}
	}
	return s
}

// burst sends SYNs of n clients to an address of a VIP, each followed by an acknowledgement of a
// possible server reply.
func (s *spoofer) burst(n int, target string) error {
	to := netip.MustParseAddrPort(target)
	for range n {
		s.next++
		client := netip.AddrFrom4([4]byte{198, 18, byte(s.next >> 8), byte(s.next)})
		if to.Addr().Is6() {
			client = netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0, 0x18, 14: byte(s.next >> 8), 15: byte(s.next)})
		}
		for _, flags := range []uint8{wire.SYN, wire.ACK} {
			l4 := wire.TCP{SrcPort: 1024 + uint16(s.next%60000), DstPort: to.Port(), Seq: s.next, Flags: flags, Window: 1000}
			if flags == wire.ACK {
				l4.Seq, l4.Ack = s.next+1, s.next*2654435761
			}
			for i, fd := range s.fds {
				p := wire.Packet{DstMAC: s.to[i], SrcMAC: s.from[i], Src: client, Dst: to.Addr(), Payload: l4}
				if err := unix.Sendto(fd, p.Frame(), 0, &unix.SockaddrLinklayer{Ifindex: s.devices[i]}); err != nil {
					return fmt.Errorf("send a segment of %v: %w", client, err)
				}
			}
		}
	}
	return nil
}

// awaitOverShare waits until a mux has logged for each VIP that it holds more than its share of a
// table.
func awaitOverShare(t *testing.T, mux, table string, vips []netip.Addr) {
	t.Helper()
	await(t, mux+" marks the VIPs that flood", func(context.Context) error {
		text, err := os.ReadFile(shared.LogPath(mux))
		if err != nil {
			return err
		}
		for _, vip := range vips {
			if want := fmt.Sprintf("vip=%s table=%s", vip, table); !strings.Contains(string(text), want) {
				return fmt.Errorf("no line has %q", want)
			}
		}
		return nil
	})
}

// TestTranslatedFlood checks that spoofed connections, ten times as many as a mux can hold, neither
// end existing connections nor prevent new ones, as long as no server reply is lost: during each
// handshake there are fewer of them than slots for new sessions.
func TestTranslatedFlood(t *testing.T) {
	logsOnFailure(t, shared)
	plain := []stranger{newStranger(t, 1, "1"), newStranger(t, 2, "2")}
	flow := translatedService("nat-flood-flow", 155, "tcp", webPort, "", plain...)
	split := translatedService("nat-flood-r", 156, "tcp", webPort, "  affinity: cookie\n", plain...)
	all := func(ctx context.Context, flags ...string) {
		for i := 1; i <= shared.Topology.Muxes; i++ {
			if err := shared.ReplaceAgent(ctx, fmt.Sprintf("mux%d", i), program, flags...); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(func() { all(context.Background()) })
	all(t.Context(), "--nat-sessions", fmt.Sprint(floodSessions))
	for _, s := range []service{flow, split} {
		s.up(t)
	}
	awaitKeys(t, split.vips(), "steady")
	held := askers(t, 8, flow, split)
	s := newSpoofer(t)
	targets := append(flow.targets(), split.targets()...)
	const rounds, each = 40, floodSessions / 2 / 8
	// Eight bursts, two for each VIP, fill the slots of untrusted sessions. The rounds below
	// continue their order: each burst evicts sessions of its own VIP, so that every VIP stays over
	// its share and no sweep changes a mark.
	for i := range 8 {
		if err := s.burst(each, targets[(i+1)/2%len(targets)]); err != nil {
			t.Fatal(err)
		}
	}
	for i := 1; i <= shared.Topology.Muxes; i++ {
		awaitOverShare(t, fmt.Sprintf("mux%d", i), "nat_untrusted", append(flow.vips(), split.vips()...))
	}
	before := make([]map[string]uint64, shared.Topology.Muxes)
	for i := range before {
		before[i] = reasons(t.Context(), t, fmt.Sprintf("mux%d", 1+i))
	}
	for round := range rounds {
		// One burst before, and one concurrently.
		if err := s.burst(each, targets[round%len(targets)]); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- s.burst(each, targets[(round+1)%len(targets)]) }()
		for _, svc := range []service{flow, split} {
			for _, target := range svc.targets() {
				if _, err := get(target, "/"); err != nil {
					t.Errorf("round %d: a new connection to %s: %v", round, target, err)
				}
			}
		}
		held = append(held, askers(t, 1, flow, split)...)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range held {
		if name, err := a.ask(); err != nil || name != a.server {
			t.Errorf("%s: answer %q, expected %q: %v", a.target, name, a.server, err)
		}
	}
	for i := range before {
		mux := fmt.Sprintf("mux%d", 1+i)
		await(t, mux+" tells what it displaced", func(ctx context.Context) error {
			now := reasons(ctx, t, mux)
			displaced := now["nat_displaced"] - before[i]["nat_displaced"]
			if displaced < rounds*each {
				return fmt.Errorf("%d of %d forged connections", displaced, 2*rounds*each)
			}
			// All VIPs are over their share: none is spared, and no new session is refused.
			if n := now["nat_full"] - before[i]["nat_full"]; n > 0 {
				t.Fatalf("%s: nat_full was counted %d times, and %d sessions gave way", mux, n, displaced)
			}
			return nil
		})
	}
}
