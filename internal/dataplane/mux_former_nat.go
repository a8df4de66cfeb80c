package dataplane

import (
	"fmt"
	"math/rand/v2"
	"unsafe"

	"github.com/cilium/ebpf"
)

// formerNATSession is a session of path nat as it was before sequence numbers were followed. It never changes again.
type formerNATSession struct {
	LipHi, LipLo, DipHi, DipLo uint64
	Way, Mac, Tags             uint64
	Ifindex, Flags             uint32
	Stamp, Newest, Slot        uint32
	Member, Cookie             uint16
	Lport, Dport               uint16
	Rsv                        uint32
}

// session is what it is now. Its numbers are unknown until the server's next segment.
func (f *formerNATSession) session() muxNatSession {
	return muxNatSession{
		LipHi: f.LipHi, LipLo: f.LipLo, DipHi: f.DipHi, DipLo: f.DipLo, Way: f.Way, Mac: f.Mac, Tags: f.Tags, Ifindex: f.Ifindex, Stamp: f.Stamp,
		Newest: f.Newest, Member: f.Member, Cookie: f.Cookie, Lport: f.Lport, Dport: f.Dport,
		Life: uint64(rand.Uint32())<<muxNatLifeShiftNAT_NUMBER_SHIFT | uint64(f.Flags),
	}
}

// Sizes of sessions that can be read.
const (
	formerNATSize = uint32(unsafe.Sizeof(formerNATSession{}))
	natSize       = uint32(unsafe.Sizeof(muxNatSession{}))
)

// checkFormerSessions refuses sessions of a form that this binary does not know.
func checkFormerSessions(m *ebpf.Map) error {
	if m == nil || m.KeySize() == uint32(unsafe.Sizeof(muxNatKey{})) && (m.ValueSize() == natSize || m.ValueSize() == formerNATSize) {
		return nil
	}
	return fmt.Errorf("sessions of path nat have %d bytes, this binary reads %d and %d", m.ValueSize(), formerNATSize, natSize)
}
