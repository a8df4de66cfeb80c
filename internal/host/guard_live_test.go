package host

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe/packet"
	"github.com/shuntlb/shunt/internal/wire"
)

// guardedAgent starts an agent in a namespace that keeps host_serve on the servers' devices, until
// stop.
func guardedAgent(namespace string, h *dataplane.Host, mtu uint32, g dataplane.HostGuard) (a *Agent, stop func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	a = New(h, thisMachine("up0"), &prober{}, clock.System{}, nil)
	a.guard = g
	a.servers = newServers(h, func() ([]int, error) { return uplinkDevices("up0") }, clock.System{}, slog.New(slog.DiscardHandler))
	done.Go(func() {
		netdev.In(namespace, func() error { return a.servers.run(ctx) })
	})
	p := testPlan(mtu)
	p.VIPs = []netip.Prefix{netip.MustParsePrefix(vipNet4), netip.MustParsePrefix(vipNet6)}
	p.Underlay = []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16"), netip.MustParsePrefix("2001:db8:20::/48")}
	err = netdev.In(namespace, func() error { return a.Apply(ctx, p) })
	return a, func() { cancel(); done.Wait() }, err
}

// guard replaces the running agent with such an agent, and returns when vm0 has the program.
func (n *testNet) guard(h *dataplane.Host, g dataplane.HostGuard) *Agent {
	n.t.Helper()
	if n.unguard != nil {
		n.unguard()
	}
	a, stop, err := guardedAgent(n.host, h, uint32(n.mtu), g)
	n.unguard = stop
	n.t.Cleanup(stop)
	check(n.t, err)
	n.eventually("the program is on vm0", func() bool { return len(a.servers.devicesOn()) == 1 })
	return a
}

// eventually waits for a condition.
func (n *testNet) eventually(what string, met func() bool) {
	n.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(2 * patience); !met(); <-tick.C {
		if time.Now().After(end) {
			n.t.Fatalf("%s: not within %s", what, 2*patience)
		}
	}
}

// programs returns the ids of the tcx programs on the ingress of a device of the host, in order.
func (n *testNet) programs(device string) []ebpf.ProgramID {
	return n.programsAt(device, ebpf.AttachTCXIngress)
}

func (n *testNet) programsAt(device string, at ebpf.AttachType) (ids []ebpf.ProgramID) {
	n.t.Helper()
	check(n.t, netdev.In(n.host, func() error {
		i, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		all, err := link.QueryPrograms(link.QueryOptions{Target: i.Index, Attach: at})
		if err != nil {
			return err
		}
		for _, p := range all.Programs {
			ids = append(ids, p.ID)
		}
		return nil
	}))
	return ids
}

// mac returns the Ethernet address of a device.
func (n *testNet) mac(namespace, device string) (mac [6]byte) {
	n.t.Helper()
	check(n.t, netdev.In(namespace, func() error {
		i, err := net.InterfaceByName(device)
		if err == nil {
			copy(mac[:], i.HardwareAddr)
		}
		return err
	}))
	return mac
}

// send sends raw frames of the server.
func (n *testNet) send(frames ...[]byte) {
	n.t.Helper()
	check(n.t, netdev.In(n.server, func() error {
		v0, err := net.InterfaceByName("v0")
		if err != nil {
			return err
		}
		s, err := packet.NewSender()
		if err != nil {
			return err
		}
		defer s.Close()
		for _, f := range frames {
			if _, err := s.Send([]packet.Frame{{Ifindex: int32(v0.Index), Data: f}}); err != nil {
				return err
			}
		}
		return nil
	}))
}

// carried is a payload of any protocol.
type carried struct {
	protocol uint8
	bytes    []byte
}

// Protocol implements wire.Payload.
func (c carried) Protocol(bool) uint8 { return c.protocol }

// Bytes implements wire.Payload.
func (c carried) Bytes(_, _ netip.Addr) []byte { return c.bytes }

// TestServersCannotSpoof checks that packets of a server with addresses of others, or in tunnels,
// are dropped, and that its own are not.
func TestServersCannotSpoof(t *testing.T) {
	n := newTestNet(t, 1500)
	n.startServers()
	h := n.attach()
	n.guard(h, dataplane.GuardNetworks)
	for _, name := range []string{"4in4", "6in6", "GUE 4in6", "rewrite none 4", "rewrite none 6", "any, rewrite none 4", "any, rewrite none 6"} {
		n.exchange(t, find(t, name), 1<<20)
	}
	const port = 9999
	var heard net.PacketConn
	check(t, netdev.In(n.client, func() (err error) {
		heard, err = net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		return err
	}))
	defer heard.Close()
	address, vm0, v0 := netip.MustParseAddr, n.mac(n.host, "vm0"), n.mac(n.server, "v0")
	// say returns a frame with a datagram to the client.
	say := func(src, words string, sport uint16) []byte {
		dst := address(client4)
		if address(src).Is6() {
			dst = address(client6)
		}
		return wire.Packet{DstMAC: vm0, SrcMAC: v0, Src: address(src), Dst: dst, Payload: wire.UDP{SrcPort: sport, DstPort: port, Data: []byte(words)}}.Frame()
	}
	tag := func(f []byte, tags ...uint32) []byte {
		out := slices.Clone(f[:12])
		for _, t := range tags {
			out = binary.BigEndian.AppendUint32(out, t)
		}
		return append(out, f[12:]...)
	}
	tunnelled := func(src, dst string) []byte {
		inner := carried{4, say(client4, "spoofed", 1)[14:]}
		return wire.Packet{DstMAC: vm0, SrcMAC: v0, Src: address(src), Dst: address(dst), Payload: inner}.Frame()
	}
	before := reasonsOf(t, h)
	n.send(
		say(dip4, "own 4", 1), tag(say(dip6, "own 6, priority tag", 1), 0x8100e000), tag(say(dip4, "own 4, priority tags", 1), 0x88a80000, 0x81000000),
		say("203.0.113.12", "own endpoint", vipPort),
		say("10.20.9.1", "spoofed", 1), say(host4, "spoofed", 1), say("2001:db8:20:9::1", "spoofed", 1), say(source4, "spoofed", 1),
		tag(say("10.20.9.1", "spoofed", 1), 0x81000000), tag(say("10.20.9.1", "spoofed", 1), 0x88a80000, 0x81006000),
		say("203.0.113.10", "spoofed", vipPort), say("203.0.113.12", "spoofed", vipPort+1), say("2001:db8:f::10", "spoofed", vipPort),
		tunnelled(dip4, host4), tunnelled(dip4, "10.20.9.1"), tunnelled(source4, dip4),
	)
	want := map[string]uint64{"sent_bad_source": 7, "sent_vip_source": 3, "sent_tunnel": 2}
	counted := func() map[string]uint64 {
		now, got := reasonsOf(t, h), map[string]uint64{}
		for reason := range want {
			got[reason] = now[reason] - before[reason]
		}
		return got
	}
	n.eventually("all are counted", func() bool {
		got := counted()
		return got["sent_bad_source"]+got["sent_vip_source"]+got["sent_tunnel"] >= 12
	})
	if got := counted(); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
	check(t, heard.SetDeadline(time.Now().Add(patience)))
	words, buf := map[string]bool{}, make([]byte, 2000)
	for len(words) < 4 {
		k, from, err := heard.ReadFrom(buf)
		if err != nil {
			t.Fatalf("heard %v, then %v", words, err)
		}
		if words[string(buf[:k])] = true; words["spoofed"] {
			t.Fatalf("heard a spoofed datagram from %s", from)
		}
	}
}

// TestGuardFollowsAServer checks that the program follows a server to a device that is created
// later.
func TestGuardFollowsAServer(t *testing.T) {
	n := newTestNet(t, 1500)
	n.startServers()
	a := n.guard(n.attach(), dataplane.GuardStrict)
	n.exchange(t, find(t, "4in4"), 1<<20)
	before := a.servers.devicesOn()
	n.command(n.host, "ip", "link", "delete", "vm0")
	n.eventually("the device is gone", func() bool { return len(a.servers.devicesOn()) == 0 })
	host, server := n.reopen(n.host), n.reopen(n.server)
	check(t, netdev.AddVeth(netdev.VethEnd{Namespace: host, Name: "vm9"}, netdev.VethEnd{Namespace: server, Name: "v9"}, 1500))
	n.address(host, "vm9", gateway4+"/32")
	n.address(server, "v9", dip4+"/32")
	n.route(host, "vm9", "", dip4+"/32")
	n.route(server, "v9", "", gateway4+"/32")
	n.route(server, "v9", gateway4, "0.0.0.0/0")
	n.eventually("another has the program", func() bool {
		on := a.servers.devicesOn()
		return len(on) == 1 && !slices.Equal(on, before)
	})
	if got := n.programs("vm9"); len(got) != 1 {
		t.Errorf("%d programs on the new device, want one", len(got))
	}
	n.exchange(t, find(t, "4in4"), 1<<20)
	check(t, netdev.In(n.host, func() error {
		p := testPlan(1500)
		p.Bindings = nil
		return a.Apply(context.Background(), p)
	}))
	n.eventually("the last server left", func() bool {
		check(t, netdev.In(n.host, a.Expire))
		return len(n.programs("vm9")) == 0
	})
}
