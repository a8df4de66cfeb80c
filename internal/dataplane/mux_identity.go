package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
)

// checkIdentity refuses endpoints whose packets could not be told apart as they say.
func checkIdentity(e MuxEndpoint) error {
	switch {
	case e.SourcePrefix4 > 32:
		return fmt.Errorf("source prefix of %d bits: IPv4 addresses have 32", e.SourcePrefix4)
	case e.SourcePrefix6 > 128:
		return fmt.Errorf("source prefix of %d bits: IPv6 addresses have 128", e.SourcePrefix6)
	case e.OnePacket && e.Key.Protocol != lb.UDP:
		return fmt.Errorf("one packet: must be an endpoint of udp, not of %s", e.Key.Protocol)
	case e.Scheduler > ScheduleLighter:
		return fmt.Errorf("scheduler %d: there are %d", e.Scheduler, ScheduleLighter)
	case e.Scheduler != ScheduleRing && (e.Affinity == AffinityHash || e.OnePacket):
		return errors.New("scheduler: needs an affinity that remembers where flows went")
	case e.OnePacket && e.sourceBits() != 0:
		return fmt.Errorf("one packet: must not keep the packets of a source together")
	}
	return nil
}

// sourceBits is how many bits of a client's address make the flow; 0: whole flows.
func (e MuxEndpoint) sourceBits() int {
	if e.Key.VIP.Is4() {
		return int(e.SourcePrefix4)
	}
	return int(e.SourcePrefix6)
}

// sourceMask is the mask of the client's address that makes the flow, as its two halves as stored.
func sourceMask(e MuxEndpoint) (hi, lo uint64) {
	bits := e.sourceBits()
	if e.Key.VIP.Is4() {
		bits += 96
	}
	var mask [16]byte
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return binary.LittleEndian.Uint64(mask[:8]), binary.LittleEndian.Uint64(mask[8:])
}

// sourcePrefix is the client as an endpoint with source affinity knows it.
func (e MuxEndpoint) sourcePrefix(client netip.Addr) netip.Addr {
	return netip.PrefixFrom(client, e.sourceBits()).Masked().Addr()
}
