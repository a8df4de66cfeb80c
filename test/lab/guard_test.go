package lab_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// replaceHosts kills the agents of all hosts, one after the other. Each is replaced by one with
// other tables, another guard and so other programs on all devices, and that one by one with the
// original settings. each is called after every replacement.
func replaceHosts(t *testing.T, each func()) {
	t.Helper()
	for _, node := range []string{"host1", "host2", "host3"} {
		for _, flags := range [][]string{{"--flows", "65536", "--guard", "strict"}, nil} {
			if err := shared.ReplaceAgent(t.Context(), node, program, flags...); err != nil {
				t.Fatal(err)
			}
			each()
		}
	}
}

// Host agents that are killed and replaced lose no packet.
func TestHostUpgradeLosesNoPacket(t *testing.T) {
	logsOnFailure(t, shared)
	echo := echoService("host-upgrade", 230)
	echo.up(t)
	s := startStream(t, echo.targets())
	replaceHosts(t, func() { s.awaitAnswers(t) })
	sent, lost, gap := s.finish(t)
	t.Logf("%d datagrams sent while the agents of three hosts were replaced twice, longest gap %s", sent, gap)
	if lost > 0 {
		t.Errorf("%d of %d datagrams were lost:\n%s", lost, sent, s.describe())
	}
}

// They also break no connection, and bulk transfers continue.
func TestHostUpgradeBreaksNoConnection(t *testing.T) {
	logsOnFailure(t, shared)
	lines := service{name: "host-upgrade-tcp", number: 231, protocol: "tcp", port: 7, dipPort: 7, encap: "gue", backends: everyVM}
	lines.entry = lines.both
	lines.up(t)
	talk := dialMany(t, lines.targets(), 60).talk()
	var bulks []*bulk
	for _, target := range lines.targets() {
		bulks = append(bulks, startBulk(t, target))
	}
	replaceHosts(t, func() {
		for _, b := range bulks {
			b.awaitMore(t)
		}
	})
	for _, b := range bulks {
		b.end(t)
	}
	for i, err := range talk.end() {
		t.Errorf("connection %d broke: %v", i, err)
	}
}

// Packets of a server that uses the address of another machine, or of a VIP that is not its own, or
// that sends into a tunnel of the underlay, are dropped and counted by its host.
func TestServersCannotSendAsOthers(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{name: "guarded", number: 232, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1", "host2-vm1"}}
	web.up(t)
	const vm, host = "host1-vm1", "host1"
	others := []netip.Addr{lab.MuxAddresses(1).V4.Addr(), lab.HostAddresses(2).V4.Addr(), lab.VMAddresses(1, 2).V4.Addr(), lab.VMAddresses(2, 1).V6.Addr()}
	own(t, vm, append(others, web.vips()...))
	before := reasons(t.Context(), t, host)
	say := func(from netip.Addr, to string) {
		t.Helper()
		err := netdev.In(shared.Topology.Name+"-"+vm, func() error {
			d := net.Dialer{}
			if from.IsValid() {
				d.LocalAddr = &net.UDPAddr{IP: from.AsSlice(), Port: 80}
			}
			c, err := d.DialContext(t.Context(), "udp", to)
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte("not me"))
			return err
		})
		if err != nil {
			t.Fatalf("from %s to %s: %v", from, to, err)
		}
	}
	client := func(a netip.Addr) string {
		c := lab.ClientAddresses(1)
		if a.Is6() {
			return netip.AddrPortFrom(c.V6.Addr(), 9).String()
		}
		return netip.AddrPortFrom(c.V4.Addr(), 9).String()
	}
	for _, a := range append(others, web.vips()...) {
		say(a, client(a))
	}
	for _, a := range []netip.Addr{lab.HostAddresses(1).V4.Addr(), lab.HostAddresses(2).V6.Addr(), lab.VMAddresses(3, 1).V4.Addr()} {
		say(netip.Addr{}, netip.AddrPortFrom(a, 6080).String())
	}
	want := map[string]uint64{"sent_bad_source": 4, "sent_vip_source": 2, "sent_tunnel": 3}
	await(t, host+" to count what was not sent", func(ctx context.Context) error {
		now := reasons(ctx, t, host)
		for reason, n := range want {
			if now[reason] < before[reason]+n {
				return fmt.Errorf("%s is %d, it was %d, want %d more", reason, now[reason], before[reason], n)
			}
		}
		return nil
	})
	for _, target := range web.targets() {
		if counts := servers(t, target, 60); counts[vm] == 0 {
			t.Errorf("%s: %s does not serve any more: %v", target, vm, counts)
		}
	}
}
