package dataplane

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// withDefaults fills in what is zero.
func (l MuxLimits) withDefaults() MuxLimits {
	d := DefaultMuxLimits
	return MuxLimits{
		Endpoints: cmp.Or(l.Endpoints, d.Endpoints), Members: cmp.Or(l.Members, d.Members),
		Backends: cmp.Or(l.Backends, d.Backends), RingWords: cmp.Or(l.RingWords, d.RingWords), Flows: cmp.Or(l.Flows, d.Flows),
		Sources: cmp.Or(l.Sources, d.Sources), SNAT: cmp.Or(l.SNAT, d.SNAT), QUIC: cmp.Or(l.QUIC, d.QUIC), NAT: l.NAT, Connections: l.Connections, Probes: cmp.Or(l.Probes, d.Probes),
	}
}

// check refuses sizes that the programs cannot work with.
func (l MuxLimits) check() error {
	for _, c := range []struct {
		name         string
		n            uint32
		least, limit muxLimit
	}{
		{"endpoints", l.Endpoints, 2, muxLimitLIMIT_ENDPOINTS},
		{"members", l.Members, memberBlockMin, muxLimitLIMIT_MEMBERS},
		{"backends", l.Backends, 1, muxLimitLIMIT_BACKENDS},
		{"ring words", l.RingWords, ringBlockMin, muxLimitLIMIT_RING_WORDS},
		{"flows", l.Flows, muxLimitLIMIT_FLOW_BUCKET, muxLimitLIMIT_FLOW_ENTRIES},
		{"sources", l.Sources, sourceBlockMin, muxLimitLIMIT_SOURCE_WORDS},
		{"VIPs with SNAT", l.SNAT, 1, muxLimitLIMIT_SNAT_VIPS},
		{"QUIC endpoints", l.QUIC, 1, muxLimitLIMIT_QUIC_SETS / 2},
	} {
		if c.n&(c.n-1) != 0 || c.n < uint32(c.least) || c.n > uint32(c.limit) {
			return fmt.Errorf("table size: %s: %d: must be a power of two from %d to %d", c.name, c.n, c.least, c.limit)
		}
	}
	if most := uint32(muxNatLimitLIMIT_NAT_SESSIONS); l.NAT > most {
		return fmt.Errorf("table size: sessions of path nat: %d: must be at most %d", l.NAT, most)
	}
	if n, least, most := l.Connections, uint32(muxConnectionLimitLIMIT_CONNECTIONS_MIN), uint32(muxConnectionLimitLIMIT_CONNECTIONS); n != 0 &&
		(n&(n-1) != 0 || n < least || n > most) {
		return fmt.Errorf("table size: connections: %d: must be 0, or a power of two from %d to %d", n, least, most)
	}
	if most := uint32(muxProbeLimitLIMIT_PROBE_RULES); l.Probes == 0 || l.Probes%probesStep != 0 || l.Probes > most {
		return fmt.Errorf("table size: probes: %d: must be a multiple of %d up to %d", l.Probes, probesStep, most)
	}
	return nil
}

// muxSpec is the embedded object with its tables sized.
func muxSpec(l MuxLimits) (*ebpf.CollectionSpec, error) {
	l = l.withDefaults()
	if err := l.check(); err != nil {
		return nil, err
	}
	spec, err := loadMux()
	if err != nil {
		return nil, fmt.Errorf("read mux object: %w", err)
	}
	jiffies, err := tickShift()
	if err != nil {
		return nil, err
	}
	j, err := jiffy()
	if err != nil {
		return nil, err
	}
	cpus, buckets := uint32(counterRegions()), l.Flows/uint32(muxLimitLIMIT_FLOW_BUCKET)
	tables, variables := connectionSizes(l.Connections, uint32(ebpf.MustPossibleCPU()))
	for name, n := range tables {
		spec.Maps[name].MaxEntries = n
	}
	for name, n := range map[string]uint32{
		muxMapEndpointSlots: 2 * l.Endpoints, muxMapEndpointExtras: l.Endpoints, muxMapRings: l.RingWords,
		muxMapMembers: l.Members, muxMapBackends: l.Backends, muxMapFlows: buckets,
		muxMapPings: l.Endpoints, muxMapTooBigs: l.Endpoints, muxMapFragmentRates: l.Endpoints, muxMapShareMarks: max(l.Members/64, 1),
		muxMapReasons: cpus * uint32(muxLimitLIMIT_REASONS), muxMapEndpointCounts: cpus * l.Endpoints,
		muxMapMemberCounts: cpus * l.Members, muxMapScheduleCursors: cpus * l.Endpoints, muxMapMemberLoads: l.Members,
		// A VIP with n ranges has at most 2n+1 intervals; one with limits or a list has an endpoint too.
		muxMapPortRanges: max(2*l.Endpoints, portBlockMin), muxMapVipGuards: l.Endpoints / 2,
		muxMapSourceLists: min(l.Endpoints/2, uint32(muxLimitLIMIT_SOURCE_LISTS)), muxMapSourceWords: l.Sources,
		muxMapSnatBlocks: l.SNAT + 1,
		// As many again for those that change.
		muxMapQuicSets: 2 * l.QUIC,
		// One for every VIP, and another while its keys change.
		muxMapCookieSets: min(l.Endpoints, uint32(muxLimitLIMIT_COOKIE_SETS)),
		// A table has one element at least.
		muxMapNatSessions: max(l.NAT, 1), muxMapNatPorts: max(l.NAT, 1), muxMapNatOpenings: max(l.NAT/2, 1),
		muxMapDatagrams:  cpus * uint32(muxLimitLIMIT_DATAGRAM_REGION),
		muxMapProbeRules: l.Probes, muxMapProbeResults: l.Probes, muxMapProbeTexts: tunnelledTexts(l.Probes),
	} {
		spec.Maps[name].MaxEntries = n
	}
	for name, v := range variables {
		if err := spec.Variables[name].Set(v); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	for name, v := range map[string]uint32{
		muxVarEndpointMask: 2*l.Endpoints - 1, muxVarFlowMask: buckets - 1, muxVarEndpointRegion: l.Endpoints,
		muxVarMemberRegion: l.Members, muxVarTickShift: jiffies, muxVarSecond: uint32(time.Second / j),
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	hz, err := jiffiesPerSecond()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables[muxVarLimitWindow].Set(limitWindow(hz)); err != nil {
		return nil, fmt.Errorf("set %s: %w", muxVarLimitWindow, err)
	}
	return spec, nil
}

// jiffy is the length of the kernel's tick: what its coarse clock counts by.
func jiffy() (time.Duration, error) {
	var res unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &res); err != nil {
		return 0, fmt.Errorf("read the resolution of the coarse clock: %w", err)
	}
	return time.Duration(res.Nano()), nil
}

// jiffiesPerSecond is the kernel's HZ.
func jiffiesPerSecond() (uint64, error) {
	j, err := jiffy()
	if err != nil {
		return 0, err
	}
	return uint64(math.Round(float64(time.Second) / float64(j))), nil
}

// tickShift is the binary logarithm of the jiffies in a tick of flow stamps, which lasts about a second.
func tickShift() (uint32, error) {
	j, err := jiffy()
	if err != nil {
		return 0, err
	}
	return uint32(math.Round(math.Log2(float64(time.Second) / float64(j)))), nil
}

// flowTick is the length of a tick of flow stamps.
func flowTick() (time.Duration, error) {
	shift, err := tickShift()
	if err != nil {
		return 0, err
	}
	j, err := jiffy()
	return j << shift, err
}
