package lab_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/wire"
)

// malformed is a frame that must be refused for exactly one reason.
type malformed struct {
	name, reason string
	frame        []byte
}

// Offsets into a frame.
const (
	atIP  = 14
	atL4  = atIP + 20
	atL46 = atIP + 40
)

// edit copies a frame and changes it. It corrects the IPv4 header checksum.
func edit(frame []byte, change func(b []byte)) []byte {
	b := append([]byte(nil), frame...)
	change(b)
	if b[12] == 0x08 && len(b) >= atL4 {
		b[atIP+10], b[atIP+11] = 0, 0
		binary.BigEndian.PutUint16(b[atIP+10:], wire.Checksum(b[atIP:atL4]))
	}
	return b
}

func set16(at int, v uint16) func([]byte) {
	return func(b []byte) { binary.BigEndian.PutUint16(b[at:], v) }
}

func set8(at int, v byte) func([]byte) { return func(b []byte) { b[at] = v } }

// muxFrames returns malformed frames to a VIP.
func muxFrames(base wire.Packet, vip4, vip6 netip.Addr) []malformed {
	client4, client6 := lab.ClientAddresses(1).V4.Addr(), lab.ClientAddresses(1).V6.Addr()
	packet := func(v6 bool, p wire.Payload) wire.Packet {
		q := base
		q.Src, q.Dst, q.Payload = client4, vip4, p
		if v6 {
			q.Src, q.Dst = client6, vip6
		}
		return q
	}
	syn := wire.TCP{SrcPort: 40000, DstPort: 80, Flags: wire.SYN, Window: 1000}
	options := func(o ...byte) []byte {
		t := syn
		t.Options = o
		return packet(false, t).Frame()
	}
	tcp4, tcp6 := packet(false, syn).Frame(), packet(true, syn).Frame()
	udp4 := packet(false, wire.UDP{SrcPort: 40000, DstPort: 80, Data: []byte("xxxx")}).Frame()
	expired := packet(false, syn)
	expired.TTL = 1
	chain := packet(true, syn)
	for range 8 {
		chain.Extensions = append(chain.Extensions, wire.Options(60, 1))
	}
	return []malformed{
		{"IHL 4", "ip4_bad_ihl", edit(tcp4, set8(atIP, 0x44))},
		{"IHL beyond the frame", "ip4_bad_ihl", edit(tcp4[:atL4+20], set8(atIP, 0x4f))},
		{"total length beyond the frame", "ip4_bad_length", edit(tcp4, set16(atIP+2, 1400))},
		{"total length below the header", "ip4_bad_length", edit(tcp4, set16(atIP+2, 19))},
		{"header checksum", "bad_checksum", func() []byte { b := edit(tcp4, func([]byte) {}); b[atIP+10] ^= 0x55; return b }()},
		{"fragment whose first one was not seen", "fragment", edit(tcp4, set16(atIP+6, 0x0007))},
		{"TCP data offset 4", "tcp_bad_offset", edit(tcp4, set8(atL4+12, 4<<4))},
		{"TCP data offset beyond the segment", "tcp_bad_offset", edit(tcp4, set8(atL4+12, 15<<4))},
		{"TCP option of length 0", "tcp_bad_option", options(2, 0, 0, 0)},
		{"TCP option of length 1", "tcp_bad_option", options(2, 1, 0, 0)},
		{"TCP option beyond the header", "tcp_bad_option", options(2, 41, 0, 0)},
		{"UDP length 7", "udp_bad_length", edit(udp4, set16(atL4+4, 7))},
		{"UDP length beyond the packet", "udp_bad_length", edit(udp4, set16(atL4+4, 900))},
		{"IPv6 payload length beyond the frame", "ip6_bad_length", edit(tcp6, set16(atIP+4, 1400))},
		{"endless IPv6 extension headers", "ip6_extensions", chain.Frame()},
		{"TCP header cut off", "truncated", edit(tcp4[:atL4+10], set16(atIP+2, 30))},
		{"protocol 47", "protocol", packet(false, wire.Raw{Number: 47, Data: make([]byte, 20)}).Frame()},
		{"nothing listens", "no_endpoint", packet(false, wire.TCP{SrcPort: 40000, DstPort: 81, Flags: wire.SYN}).Frame()},
		{"echo reply to a VIP", "icmp_ignored", packet(false, wire.Echo{Reply: true, ID: 1}).Frame()},
		{"TTL 1", "ttl_expired", expired.Frame()},
	}
}

// Truncated and malformed packets are dropped and counted by reason. None is forwarded, and the mux
// continues to work.
func TestMalformedAtMux(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{name: "malformed", number: 35, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1"}}
	web.up(t)
	vip4, vip6 := lab.VIPAddresses(web.number)
	frames := muxFrames(frameTo(t, "mux1"), vip4, vip6)
	checkReasons(t, "mux1", "forwarded", frames)
	for _, target := range web.targets() {
		servers(t, target, 20)
	}
}

// hostFrames returns tunnel packets that a host must refuse.
func hostFrames(base wire.Packet, outer, vip netip.Addr, port uint16) []malformed {
	tunnel := func(source string, inner []byte) []byte {
		p := base
		p.Src, p.Dst = netip.MustParseAddr(source), outer
		p.Payload = wire.Raw{Number: wire.ProtoIPIP, Data: inner[atIP:]}
		return p.Frame()
	}
	inner := base
	inner.Src, inner.Dst = lab.ClientAddresses(1).V4.Addr(), vip
	inner.Payload = wire.TCP{SrcPort: 40000, DstPort: port, Flags: wire.SYN, Window: 1000}
	other := inner
	other.Payload = wire.TCP{SrcPort: 40000, DstPort: port + 1, Flags: wire.SYN}
	good := inner.Frame()
	const source = "100.64.1.2"
	return []malformed{
		{"outer source that is no tunnel source", "in_bad_source", tunnel("192.0.2.1", good)},
		{"port without a binding", "in_no_binding", tunnel(source, other.Frame())},
		{"inner IHL 4", "in_malformed", tunnel(source, edit(good, set8(atIP, 0x44)))},
		{"inner total length beyond the packet", "in_malformed", tunnel(source, edit(good, set16(atIP+2, 1400)))},
		{"inner header cut off", "in_malformed", tunnel(source, good[:atIP+12])},
		{"inner TCP data offset 4", "in_malformed", tunnel(source, edit(good, set8(atL4+12, 4<<4)))},
		{"inner TCP header cut off", "in_malformed", tunnel(source, edit(good[:atL4+10], set16(atIP+2, 30)))},
		{"inner fragment whose first one was not seen", "in_fragment", tunnel(source, edit(good, set16(atIP+6, 0x0007)))},
		{"outer fragment", "in_fragment", edit(tunnel(source, good), set16(atIP+6, 0x2000))},
	}
}

// The same at a host.
func TestMalformedAtHost(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{name: "malformed-host", number: 36, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1"}}
	web.up(t)
	vip4, _ := lab.VIPAddresses(web.number)
	frames := hostFrames(frameTo(t, "host1"), lab.VMAddresses(1, 1).V4.Addr(), vip4, 80)
	server := listen(t, "host1-vm1", lab.Uplink)
	checkReasons(t, "host1", "", frames)
	// Check at the server which packets passed, because in_delivered also counts checks through
	// tunnels.
	client := lab.ClientAddresses(1).V4.Addr().As4()
	for _, one := range server.those(func(f frame) bool {
		return !f.out && f.kind() == unix.ETH_P_IP && len(f.data) >= atL4 && bytes.Equal(f.data[atIP+12:atIP+16], client[:])
	}) {
		t.Errorf("host1 let a malformed packet through: %x", one.data)
	}
	for _, target := range web.targets() {
		servers(t, target, 20)
	}
}

// checkReasons sends every frame to a node a few times and expects each counted under its reason
// and none under `delivered`. If that is empty, the caller checks it.
func checkReasons(t *testing.T, node, delivered string, frames []malformed) {
	t.Helper()
	const times = 3
	before := reasons(t.Context(), t, node)
	want := map[string]uint64{}
	for _, f := range frames {
		want[f.reason] += times
		for range times {
			inject(t, node, f.frame)
		}
	}
	for reason, n := range want {
		await(t, fmt.Sprintf("%s to count %d under %s", node, n, reason), func(ctx context.Context) error {
			if got := reasons(ctx, t, node)[reason] - before[reason]; got < n {
				return fmt.Errorf("counted %d", got)
			}
			return nil
		})
	}
	after := reasons(t.Context(), t, node)
	for reason, n := range want {
		if got := after[reason] - before[reason]; got != n {
			t.Errorf("%s counted %d under %s, want %d", node, got, reason, n)
		}
	}
	if got := after[delivered] - before[delivered]; delivered != "" && got != 0 {
		t.Errorf("%s let %d malformed packets through", node, got)
	}
}

// frameTo returns a packet from the router to a node, without addresses.
func frameTo(t *testing.T, node string) wire.Packet {
	t.Helper()
	p := wire.Packet{}
	copy(p.DstMAC[:], hardwareAddress(t, node, lab.Uplink))
	copy(p.SrcMAC[:], hardwareAddress(t, "router1", node))
	return p
}

func hardwareAddress(t *testing.T, node, dev string) net.HardwareAddr {
	t.Helper()
	var mac net.HardwareAddr
	err := netdev.In(shared.Topology.Name+"-"+node, func() error {
		i, err := net.InterfaceByName(dev)
		if err == nil {
			mac = i.HardwareAddr
		}
		return err
	})
	if err != nil {
		t.Fatalf("device %s of %s: %v", dev, node, err)
	}
	return mac
}

// inject sends a raw frame from the router's end of a node's link.
func inject(t *testing.T, node string, frame []byte) {
	t.Helper()
	err := netdev.In(shared.Topology.Name+"-router1", func() error {
		i, err := net.InterfaceByName(node)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: i.Index})
	})
	if err != nil {
		t.Fatalf("send %d bytes to %s: %v", len(frame), node, err)
	}
}
