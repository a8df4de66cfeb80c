package benchrun

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/dataplane"
)

// Forwarded runs the mux's program on the SYN of an IPv4 client to a VIP, sent to the given Ethernet address, and names the outer
// destination that it leaves for; the zero address: it was dropped.
func Forwarded(m *dataplane.Mux, to [6]byte, client, vip netip.AddrPort) (netip.Addr, error) {
	frame := template4()
	copy(frame, to[:])
	ip := frame[ethLen:]
	source, destination := client.Addr().As4(), vip.Addr().As4()
	copy(ip[12:], source[:])
	copy(ip[16:], destination[:])
	binary.LittleEndian.PutUint16(ip[10:], ^uint16(storedSum(ip[:ip4Len])))
	binary.BigEndian.PutUint16(ip[ip4Len:], client.Port())
	binary.BigEndian.PutUint16(ip[ip4Len+2:], vip.Port())
	frame[IPv4.flagsAt()] = tcpSYN
	run := ebpf.RunOptions{Data: frame, DataOut: make([]byte, 2048), Repeat: 1}
	const drop, transmit, redirect = 1, 3, 4 // enum xdp_action
	switch verdict, err := m.Program().Run(&run); {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("run the mux: %w", err)
	case verdict == drop:
		return netip.Addr{}, nil
	case verdict != transmit && verdict != redirect:
		return netip.Addr{}, fmt.Errorf("run the mux: verdict %d for a packet to %s", verdict, vip)
	}
	outer, err := parseOuter(run.DataOut, IPv4)
	return outer.Destination, err
}
