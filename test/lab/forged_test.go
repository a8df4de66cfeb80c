package lab_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/wire"
)

// forger sends segments with the addresses of a client from a node that is not on the path of the
// connection.
type forger struct {
	node string
	link [2][6]byte // destination and source of its frames
}

// newForger returns a forger that sends from the uplink of node. gateway and device are the other
// end of that link.
func newForger(t *testing.T, node, gateway, device string) forger {
	t.Helper()
	f := forger{node: node}
	copy(f.link[0][:], hardwareAddress(t, gateway, device))
	copy(f.link[1][:], hardwareAddress(t, node, lab.Uplink))
	return f
}

// send sends a segment with random sequence numbers.
func (f forger) send(t *testing.T, from, to netip.AddrPort, flags uint8) {
	t.Helper()
	packet := wire.Packet{DstMAC: f.link[0], SrcMAC: f.link[1], Src: from.Addr(), Dst: to.Addr(), Payload: wire.TCP{
		SrcPort: from.Port(), DstPort: to.Port(), Seq: rand.Uint32(), Ack: rand.Uint32(), Flags: flags, Window: 1000,
	}}
	sendFrame(t, f.node, lab.Uplink, packet.Frame())
}

// client returns the address and port of the client's end.
func (a *asker) client(t *testing.T) netip.AddrPort {
	t.Helper()
	ap, err := netip.ParseAddrPort(a.conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	return ap
}

// arrivals returns how many segments with exactly these flags and source f has.
func (f *frames) arrivals(from netip.AddrPort, flags uint8) int {
	return len(f.those(func(one frame) bool {
		h, err := wire.ParseFrame(one.data)
		return err == nil && !one.out && h.Protocol == wire.ProtoTCP && len(h.Payload) >= 20 &&
			h.Src == from.Addr() && h.SrcPort == from.Port() && h.Payload[13] == flags
	}))
}

// TestForgedSegmentsBreakNoConnection checks that forged SYNs and RSTs, to the VIP and to DIPs,
// from outside and from another server, end no connection and move none to another backend, even
// while its backend drains.
func TestForgedSegmentsBreakNoConnection(t *testing.T) {
	logsOnFailure(t, shared)
	for i, from := range []struct{ name, node, gateway, device string }{
		{"outside", "client1", "router1", "clients"},
		{"neighbour", "host1-vm2", "host1", "vm2"},
	} {
		t.Run(from.name, func(t *testing.T) {
			web := service{name: "forged-" + from.name, number: 233 + i, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1", "host2-vm1"}}
			web.up(t)
			forged(t, web, newForger(t, from.node, from.gateway, from.device))
		})
	}
}

func forged(t *testing.T, web service, f forger) {
	t.Helper()
	const drained = "host1-vm1"
	dips, received := map[string][]netip.Addr{}, map[string]*frames{}
	for _, name := range web.backends {
		vm, err := shared.Topology.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		dips[name] = []netip.Addr{vm.Addresses().V4.Addr(), vm.Addresses().V6.Addr()}
		received[name] = listen(t, name, lab.Uplink)
	}
	atClient := listen(t, "client1", lab.Uplink)
	all, draining := askers(t, 10, web), 0
	for _, a := range all {
		a.server = strings.TrimSpace(a.server)
		if received[a.server] == nil {
			t.Fatalf("%s: %q answers, expected one of %v", a.target, a.server, web.backends)
		}
		if a.server == drained {
			draining++
		}
	}
	if draining == 0 || draining == len(all) {
		t.Fatalf("%d of %d connections are on %s", draining, len(all), drained)
	}
	// attack sends a segment per connection to each destination and waits until the connection's
	// own server has them.
	attack := func(what string, flags uint8, to func(a *asker) []netip.AddrPort) {
		t.Helper()
		before := map[*asker]int{}
		for _, a := range all {
			before[a] = received[a.server].arrivals(a.client(t), flags)
			for _, dst := range to(a) {
				f.send(t, a.client(t), dst, flags)
			}
		}
		await(t, what+" at the servers of their connections", func(context.Context) error {
			for _, a := range all {
				if n, want := received[a.server].arrivals(a.client(t), flags)-before[a], len(to(a)); n < want {
					return fmt.Errorf("%s from %s: %s has %d of %d", a.target, a.client(t), a.server, n, want)
				}
			}
			return nil
		})
		for _, a := range all {
			if name, err := a.ask(); err != nil || strings.TrimSpace(name) != a.server {
				t.Errorf("after %s, %s from %s: answer %q, expected %q: %v", what, a.target, a.client(t), name, a.server, err)
			}
		}
		for name, addrs := range dips {
			if n := len(atClient.those(func(one frame) bool {
				h, err := wire.ParseFrame(one.data)
				return err == nil && !one.out && (h.Src == addrs[0] || h.Src == addrs[1])
			})); n > 0 {
				t.Errorf("after %s: %d packets with the DIP of %s as source reached the client", what, n, name)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	vip := func(a *asker) []netip.AddrPort { return []netip.AddrPort{netip.MustParseAddrPort(a.target)} }
	dip := func(a *asker) []netip.AddrPort {
		addr := dips[a.server][0]
		if a.client(t).Addr().Is6() {
			addr = dips[a.server][1]
		}
		return []netip.AddrPort{netip.AddrPortFrom(addr, uint16(web.dipPort))}
	}
	attack("RSTs to DIPs", wire.RST, dip)
	attack("SYNs to DIPs", wire.SYN, dip)
	attack("SYNs to VIPs", wire.SYN, vip)
	web.entry = with(web, drained, "drain: true")
	web.apply(t)
	attack("SYNs to VIPs while a backend drains", wire.SYN, vip)
	attack("SYNs to DIPs while a backend drains", wire.SYN, dip)
	// RSTs to VIPs come last, because muxes cannot check their sequence numbers.
	attack("RSTs to VIPs while a backend drains", wire.RST, vip)
	for _, target := range web.targets() {
		if got := servers(t, target, 10); got[drained] > 0 {
			t.Errorf("%s: new connections are on %v, %s drains", target, got, drained)
		}
	}
}
