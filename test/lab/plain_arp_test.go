package lab_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lab"
)

// asksInItsOwnName checks that the server neither answers ARP requests for its VIP nor sends
// requests with the VIP as sender. Without the two settings it does both.
func (p *plainServer) asksInItsOwnName(t *testing.T) {
	t.Helper()
	namespace := shared.Topology.Name + "-" + p.vm
	vm, err := shared.Topology.Find(p.vm)
	if err != nil {
		t.Fatal(err)
	}
	dip, vip := vm.Addresses().V4.Addr(), p.vips[0]
	asker := netip.MustParseAddr("10.20.1.1")
	all := listen(t, p.vm, lab.Uplink)
	look := func(settings string) (asked, answered map[netip.Addr]bool) {
		all.forget()
		// Collect the senders of the server's ARP packets. A reply to the second request comes
		// after one to the first.
		for _, of := range []netip.Addr{vip, dip} {
			sendFrame(t, "host1", "vm1", arpRequest(hardwareAddress(t, "host1", "vm1"), asker, of))
		}
		said := func(op byte) map[netip.Addr]bool {
			out := map[netip.Addr]bool{}
			for _, f := range all.those(func(f frame) bool {
				return f.out && f.kind() == unix.ETH_P_ARP && len(f.data) >= 42 && f.data[21] == op
			}) {
				out[netip.AddrFrom4([4]byte(f.data[28:32]))] = true
			}
			return out
		}
		await(t, "ARP of the server with "+settings, func(context.Context) error {
			// A response to a client requires the router's address, and so an ARP request.
			runIP(t, namespace, "neigh", "flush", "dev", lab.Uplink)
			if _, err := get(netip.AddrPortFrom(vip, lab.ServerPort).String(), "/"); err != nil {
				return err
			}
			if asked, answered = said(1), said(2); len(asked) == 0 || !answered[dip] {
				return fmt.Errorf("it asked in the name of %v and answered for %v", asked, answered)
			}
			return nil
		})
		return asked, answered
	}
	if asked, answered := look("the page's settings"); asked[vip] || answered[vip] {
		t.Errorf("the server asks in the name of %v and answers for %v", asked, answered)
	}
	set := func(ignore, announce string) {
		p.set(t, "net/ipv4/conf/"+lab.Uplink+"/arp_ignore", ignore)
		p.set(t, "net/ipv4/conf/"+lab.Uplink+"/arp_announce", announce)
	}
	set("0", "0")
	defer set("1", "2")
	if asked, answered := look("the kernel's settings"); !asked[vip] || !answered[vip] {
		t.Errorf("without the settings the server asks in the name of %v and answers for %v: this test can say nothing of them", asked, answered)
	}
	if wrong, failed := p.doctor(t); failed || len(wrong) != 2 || wrong[0].Check != "arp_ignore" || wrong[1].Check != "arp_announce" {
		t.Errorf("the doctor finds %+v", wrong)
	}
}

// arpRequest returns an ARP request for an address (RFC 826).
func arpRequest(from net.HardwareAddr, sender, target netip.Addr) []byte {
	f := bytes.Repeat([]byte{0xff}, 6)
	f = append(f, from...)
	f = append(f, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1)
	f = append(f, from...)
	f = append(f, sender.AsSlice()...)
	f = append(f, make([]byte, 6)...)
	return append(f, target.AsSlice()...)
}
