package benchrun

import (
	"bytes"
	"testing"

	"github.com/shuntlb/shunt/internal/cid"
)

// The front program writes the connection id that packet describes, which names a member, into a datagram of QUIC that ends where it says.
func TestFrontWritesTheConnectionID(t *testing.T) {
	set := cid.Set{Format: cid.QUICLB, Configs: []cid.Config{{ID: 2, Key: [16]byte{1}, ServerID: 3, Nonce: 13}}}
	h := open(t, Traffic{Family: IPv4, Flows: 1 << 20, VIPs: 20000, QUIC: 100, CIDs: set})
	seen := map[uint16]bool{}
	for _, flow := range []uint32{0, 1, 2, 3, 0x1ffff, 0xfffff} {
		run, err := h.One(h.Null(), flow)
		if err != nil {
			t.Fatal(err)
		}
		ip := run.Frame[ethLen:]
		if len(ip) != ip4Len+quicLen || storedSum(ip[:ip4Len]) != 0xffff || ip[9] != protoUDP || int(ip[3]) != len(ip) || int(ip[ip4Len+5]) != quicLen {
			t.Fatalf("flow %d: packet % x", flow, ip)
		}
		header, ok := cid.Parse(ip[ip4Len+8:])
		if want := h.traffic.packet(flow); !ok || header.Long || !bytes.HasPrefix(header.DCID, want.CID) {
			t.Errorf("flow %d: %+v, want id %x", flow, header, want.CID)
		}
		id, ok := set.Member(header.DCID)
		if !ok || id >= 100 {
			t.Errorf("flow %d: the id names member %d, %v", flow, id, ok)
		}
		seen[id] = true
	}
	if len(seen) < 4 {
		t.Errorf("six flows are of members %v", seen)
	}
	if _, err := Open(Traffic{Family: IPv6, Flows: 1, VIPs: 1, QUIC: 1, CIDs: set}, true); err == nil {
		t.Error("packets of QUIC by IPv6 were not refused")
	}
}
