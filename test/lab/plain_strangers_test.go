package lab_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/wire"
)

// The kernel's devices accept tunnels of any sender, and the page's table for nftables refuses
// them.
func TestPlainServerRefusesStrangers(t *testing.T) {
	logsOnFailure(t, shared)
	p := readPlainServer(t)
	p.up(t, "ipip")
	vm, err := shared.Topology.Find(p.vm)
	if err != nil {
		t.Fatal(err)
	}
	client, err := shared.Topology.Find("client1")
	if err != nil {
		t.Fatal(err)
	}
	echoes := listen(t, "client1", lab.Uplink)
	// There is no table after success.
	t.Cleanup(func() { _, _ = p.command("nft", "delete table inet plain_server") })
	for i, vip := range p.vips {
		from, dip := []netip.Addr{client.Addresses().V4.Addr(), client.Addresses().V6.Addr()}[i], []netip.Addr{vm.Addresses().V4.Addr(), vm.Addresses().V6.Addr()}[i]
		protocol, source := uint8(wire.ProtoIPIP), netip.MustParseAddr("100.64.7.7")
		if vip.Is6() {
			protocol, source = wire.ProtoIPv6, netip.MustParseAddr("fd53:6875:6e74::7:7")
		}
		send := func(outer netip.Addr, word string) {
			inner := wire.Packet{Src: from, Dst: vip, Payload: wire.UDP{SrcPort: 40000, DstPort: lab.EchoPort, Data: []byte(word)}}.IP()
			packet := wire.Packet{Src: outer, Dst: dip, Payload: wire.Raw{Number: protocol, Data: inner}}
			copy(packet.SrcMAC[:], hardwareAddress(t, "host1", "vm1"))
			copy(packet.DstMAC[:], hardwareAddress(t, p.vm, lab.Uplink))
			sendFrame(t, "host1", "vm1", packet.Frame())
		}
		echoed := func(word string) bool {
			return len(echoes.those(func(f frame) bool {
				h, err := wire.ParseFrame(f.data)
				return err == nil && h.Src == vip && h.Protocol == wire.ProtoUDP && bytes.HasSuffix(h.Packet, []byte(word))
			})) > 0
		}
		arrives := func(outer netip.Addr, word string) {
			t.Helper()
			await(t, "an echo of "+word, func(context.Context) error {
				send(outer, word)
				if !echoed(word) {
					return errors.New("none yet")
				}
				return nil
			})
		}
		arrives(from, fmt.Sprintf("a stranger's, %s", vip))
		p.tables(t, p.guard)
		lost := fmt.Sprintf("a refused one, %s", vip)
		send(from, lost)
		arrives(source, fmt.Sprintf("a mux's, %s", vip))
		if echoed(lost) {
			t.Errorf("%s: with the page's table a stranger's tunnel is taken", vip)
		}
		p.tables(t, "delete table inet plain_server")
	}
}
