package main

import (
	"cmp"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/dataplane"
)

// slotsPerRingWord is the number of ring slots in a word of the ring table.
const slotsPerRingWord = 4

// muxSizes holds the sizes of a mux's tables as flags set them. 0 means the default.
type muxSizes struct{ flows, endpoints, members, backends, ringSlots, snatVIPs, quic, nat, connections, probes uint64 }

// flags adds the flags.
func (s *muxSizes) flags(cmd *cobra.Command) {
	fl := cmd.Flags()
	d := dataplane.DefaultMuxLimits
	fl.Uint64Var(&s.flows, "flows", uint64(d.Flows), "flows remembered, 8 bytes each: a power of two from 65536 (64 Ki) to 67108864 (64 Mi)")
	fl.Uint64Var(&s.endpoints, "max-endpoints", uint64(d.Endpoints), "room for endpoints, VIPs included, a power of two: 136 bytes each, and 16 per CPU")
	fl.Uint64Var(&s.members, "max-members", uint64(d.Members), "room for the backends of all endpoints together, a power of two: 8 bytes each, and 16 per CPU")
	fl.Uint64Var(&s.backends, "max-backends", uint64(d.Backends), "room for different backends, a power of two: 64 bytes each")
	fl.Uint64Var(&s.ringSlots, "ring-slots", uint64(d.RingWords)*slotsPerRingWord, "room for slots of rings, a power of two: 2 bytes each, about 100 for each backend of an endpoint")
	fl.Uint64Var(&s.snatVIPs, "max-snat-vips", uint64(d.SNAT), "room for VIPs with snat, a power of two: 16 KiB each")
	fl.Uint64Var(&s.quic, "max-quic-endpoints", uint64(d.QUIC), "room for quic endpoints with affinity cookie, a power of two: 2816 bytes each")
	fl.Uint64Var(&s.nat, "nat-sessions", uint64(d.NAT), "room for flows of path nat, at most 4194304 (4 Mi): about 500 bytes each; 0: none, and services of path nat are refused")
	fl.Uint64Var(&s.connections, "connections", uint64(d.Connections), "connections with records (endpoints with track), 57 bytes each: 0 for none, or a power of two from 1024 to 2097152 (2 Mi)")
	fl.Uint64Var(&s.probes, "max-probes", uint64(d.Probes), maxProbesUsage)
}

// maxProbesUsage is the help text for muxes and hosts.
const maxProbesUsage = "room for health checks made by packets, a multiple of 64: 152 bytes each; sockets make the others"

// checkMaxProbes refuses a --max-probes that no table can have.
func checkMaxProbes(n uint64) error {
	if most := dataplane.MaxMuxLimits.Probes; n%64 != 0 || n > uint64(most) {
		return usagef("--max-probes: %d: must be a multiple of 64 from 64 to %d", n, most)
	}
	return nil
}

// check refuses sizes that no table can have.
func (s *muxSizes) check() error {
	most := dataplane.MaxMuxLimits
	for _, c := range []struct {
		flag        string
		n           uint64
		least, most uint64
	}{
		{"--flows", s.flows, 1 << 16, uint64(most.Flows)},
		{"--max-endpoints", s.endpoints, 64, uint64(most.Endpoints)},
		{"--max-members", s.members, 64, uint64(most.Members)},
		{"--max-backends", s.backends, 64, uint64(most.Backends)},
		{"--ring-slots", s.ringSlots, 1 << 12, uint64(most.RingWords) * slotsPerRingWord},
		{"--max-snat-vips", s.snatVIPs, 1, uint64(most.SNAT)},
		{"--max-quic-endpoints", s.quic, 1, uint64(most.QUIC)},
	} {
		if n := cmp.Or(c.n, c.least); n&(n-1) != 0 || n < c.least || n > c.most {
			return usagef("%s: %d: must be a power of two from %d to %d", c.flag, c.n, c.least, c.most)
		}
	}
	if s.nat > uint64(most.NAT) {
		return usagef("--nat-sessions: %d: must be at most %d", s.nat, most.NAT)
	}
	if n, most := s.connections, uint64(most.Connections); n != 0 && (n&(n-1) != 0 || n < 1024 || n > most) {
		return usagef("--connections: %d: must be 0, or a power of two from 1024 to %d", n, most)
	}
	return checkMaxProbes(s.probes)
}

// limits converts the sizes to the data plane's limits.
func (s *muxSizes) limits() dataplane.MuxLimits {
	return dataplane.MuxLimits{
		Flows: uint32(s.flows), Endpoints: uint32(s.endpoints), Members: uint32(s.members), Backends: uint32(s.backends),
		RingWords: uint32(s.ringSlots / slotsPerRingWord), SNAT: uint32(s.snatVIPs), QUIC: uint32(s.quic), NAT: uint32(s.nat),
		Connections: uint32(s.connections), Probes: uint32(s.probes),
	}
}
