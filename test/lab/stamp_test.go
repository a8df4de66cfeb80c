package lab_test

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/wire"
)

// tcpOf returns the TCP header of a frame with all its options, or nil without one. It does not
// support extension headers and fragments.
func (f frame) tcpOf() []byte {
	var tcp []byte
	switch d := f.data; {
	case f.kind() == unix.ETH_P_IP && len(d) >= 34 && d[23] == wire.ProtoTCP:
		tcp = d[min(14+int(d[14]&15)*4, len(d)):]
	case f.kind() == unix.ETH_P_IPV6 && len(d) >= 54 && d[20] == wire.ProtoTCP:
		tcp = d[54:]
	}
	if len(tcp) < 20 || len(tcp) < int(tcp[12]>>4)*4 {
		return nil
	}
	return tcp[:int(tcp[12]>>4)*4]
}

// stampTo returns the timestamp of a segment to a port (RFC 7323 section 3.2).
func (f frame) stampTo(port int) (tcp []byte, stamp uint32, ok bool) {
	tcp = f.tcpOf()
	if tcp == nil || int(binary.BigEndian.Uint16(tcp[2:])) != port {
		return nil, 0, false
	}
	for o := tcp[20:]; len(o) > 1 && o[0] != 0; {
		if o[0] == 1 {
			o = o[1:]
			continue
		}
		if o[0] == 8 && len(o) >= 10 {
			return tcp, binary.BigEndian.Uint32(o[2:]), true
		}
		o = o[min(len(o), max(2, int(o[1]))):]
	}
	return tcp, 0, false
}

// stampsTo returns the timestamps of all segments to a port so far, only of SYN-ACKs if answers is
// set.
func (f *frames) stampsTo(port int, answers bool) (out []uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.all {
		if tcp, stamp, ok := one.stampTo(port); ok && (!answers || tcp[13]&(wire.SYN|wire.ACK) == wire.SYN|wire.ACK) {
			out = append(out, stamp)
		}
	}
	return out
}

// stampsOfAnswer returns those of the SYN-ACKs to a port.
func (f *frames) stampsOfAnswer(port int) []uint32 { return f.stampsTo(port, true) }

// lastStamp returns the timestamp of the last segment to a port.
func (f *frames) lastStamp(port int) (uint32, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range slices.Backward(f.all) {
		if _, stamp, ok := one.stampTo(port); ok {
			return stamp, true
		}
	}
	return 0, false
}
