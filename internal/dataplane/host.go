package dataplane

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/plan"
)

// Apply implements HostTables. Additions and changes come before removals, so that a binding that moves is never
// missing, unless both do not fit; flow state of removed bindings stays, for answers under way. The tunnel sources are not changed in one step:
// a packet that arrives in between may be judged by half of the old prefix.
func (h *Host) Apply(s HostState) error {
	want, err := wantedTables(s)
	if err != nil {
		return fmt.Errorf("apply host state: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.applyLocked(want); err != nil {
		return fmt.Errorf("apply host state: %w", err)
	}
	h.state.plans, h.state.unrepaired, h.mtu = want.plans, want.unrepaired, s.MTU
	h.clampHoldersLocked()
	return nil
}

func (h *Host) applyLocked(want hostTables) error {
	// While both are there, the programs look for both.
	both := want.config
	both.Flags |= h.state.config.Flags
	if err := putAll(h.objects.TunnelSources, h.state.sources, want.sources); err != nil {
		return err
	}
	if err := putAll(h.objects.Networks, h.state.networks, want.networks); err != nil {
		return err
	}
	if err := h.configureLocked(both); err != nil {
		return err
	}
	if err := putAll(h.objects.SnatInsideOf, h.state.inside, want.inside); err != nil {
		return err
	}
	if h.crowdedLocked(&want) {
		if err := h.pruneLocked(want); err != nil {
			return err
		}
	}
	if err := h.numberLocked(want); err != nil {
		return err
	}
	if err := putAll(h.objects.Peers, h.state.peers, want.peers); err != nil {
		return err
	}
	want.repair(h.repairs.follow(append(slices.Clip(want.repairs), h.spreadRecords(want.spreadOf)...)))
	if err := h.flows.cookies.follow(want.cookies, &h.deferred); err != nil {
		return err
	}
	if err := h.bindFlowsLocked(want); err != nil {
		return err
	}
	if err := putBindings(h.objects.Outers, TableBindings, h.state.outers, want.outers); err != nil {
		return err
	}
	if err := putBindings(h.objects.OwnedVips, TableBindings, h.state.owned, want.owned); err != nil {
		return err
	}
	if err := putBindings(h.objects.BoundMembers, TableBindings, h.state.bindings, want.bindings); err != nil {
		return err
	}
	if err := putBindings(h.objects.BoundRanges, TableBindingParts, h.state.ranges, want.ranges); err != nil {
		return err
	}
	if err := h.pruneLocked(want); err != nil {
		return err
	}
	h.repairs.release()
	h.flows.cookies.release(want.cookies, h.flows.binding, &h.deferred)
	h.keepAddrsLocked(want)
	return errors.Join(h.configureLocked(want.config), h.deferred.errLocked())
}

// configureLocked writes the configuration if it differs.
func (h *Host) configureLocked(c hostHostConfig) error {
	if h.state.config == c {
		return nil
	}
	if err := h.objects.HostConfigs.Put(uint32(0), c); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	h.state.config = c
	return nil
}

// pruneLocked removes what is not wanted.
func (h *Host) pruneLocked(want hostTables) error {
	return errors.Join(
		prune(h.objects.BoundMembers, h.state.bindings, want.bindings),
		prune(h.objects.BoundRanges, h.state.ranges, want.ranges),
		prune(h.objects.TunnelSources, h.state.sources, want.sources),
		prune(h.objects.Networks, h.state.networks, want.networks),
		prune(h.objects.OwnedVips, h.state.owned, want.owned),
		prune(h.objects.Peers, h.state.peers, want.peers),
		prune(h.objects.SnatInsideOf, h.state.inside, want.inside),
		prune(h.objects.Outers, h.state.outers, want.outers))
}

// crowdedLocked reports whether what the tables hold and what is wanted do not fit beside each other.
func (h *Host) crowdedLocked(want *hostTables) bool {
	have := &h.state
	if crowded(have.bindings, want.bindings, hostMaxBindings) || crowded(have.ranges, want.ranges, hostMaxPrefixes) ||
		crowded(have.outers, want.outers, hostMaxBindings) || crowded(have.owned, want.owned, hostMaxBindings) || crowded(have.peers, want.peers, hostMaxPeers) {
		return true
	}
	if len(have.bindings)+len(have.ranges)+len(want.plans) <= hostMaxBindings {
		return false
	}
	// Ranges and single ports have counters of one table.
	counters := map[uint32]bool{}
	for _, b := range have.bindings {
		counters[b.Index] = true
	}
	for _, b := range have.ranges {
		counters[b.Index] = true
	}
	fresh := 0
	for i := range want.plans {
		if _, known := have.indexOf(&want.plans[i]); !known {
			fresh++
		}
	}
	return len(counters)+fresh > hostMaxBindings
}

// crowded tells whether old and new entries do not fit beside each other: then the old ones go first.
func crowded[K comparable, V any](have, want map[K]V, most int) bool {
	all := len(have)
	for key := range want {
		if _, ok := have[key]; !ok {
			all++
		}
	}
	return all > most
}

// putAll writes what differs, into the map and into have.
func putAll[K, V comparable](m *ebpf.Map, have, want map[K]V) error {
	for k, v := range want {
		if old, ok := have[k]; ok && old == v {
			continue
		}
		if err := m.Put(k, v); err != nil {
			return fmt.Errorf("write %s: %w", mapName(m), err)
		}
		have[k] = v
	}
	return nil
}

// prune removes what is not wanted, from the map and from have.
func prune[K, V comparable](m *ebpf.Map, have, want map[K]V) error {
	for k := range have {
		if _, ok := want[k]; ok {
			continue
		}
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("prune %s: %w", mapName(m), err)
		}
		delete(have, k)
	}
	return nil
}

func mapName(m *ebpf.Map) string {
	info, err := m.Info()
	if err != nil {
		return "map"
	}
	return "map " + info.Name
}

// readTables learns what pinned maps hold, and writes the ABI version into new ones.
func (h *Host) readTables() error {
	if err := h.objects.HostConfigs.Lookup(uint32(0), &h.state.config); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if h.state.config.AbiVersion == 0 {
		// No tunnel sources yet: nothing is accepted before the first plan.
		c := noSources()
		if err := h.objects.HostConfigs.Put(uint32(0), c); err != nil {
			return fmt.Errorf("write configuration: %w", err)
		}
		h.state.config = c
	}
	var err error
	if h.state.sources, err = readAll[hostTunnelSource, uint32](h.objects.TunnelSources); err != nil {
		return err
	}
	if h.state.networks, err = readAll[hostNetworkPrefix, hostNetworkKind](h.objects.Networks); err != nil {
		return err
	}
	if h.senders, err = readAll[hostSenderKey, hostSenderUse](h.objects.Senders); err != nil {
		return err
	}
	if h.state.bindings, err = readAll[hostBindingKey, hostBinding](h.objects.BoundMembers); err != nil {
		return err
	}
	if h.state.ranges, err = readAll[hostBindingPrefix, hostBinding](h.objects.BoundRanges); err != nil {
		return err
	}
	if h.state.outers, err = readAll[[16]byte, hostHostTunnel](h.objects.Outers); err != nil {
		return err
	}
	if h.state.peers, err = readAll[[16]byte, hostRepairUse](h.objects.Peers); err != nil {
		return err
	}
	if h.state.inside, err = readAll[hostHostSnatPrefix, uint32](h.objects.SnatInsideOf); err != nil {
		return err
	}
	for _, b := range h.state.bindings {
		err = errors.Join(err, h.repairs.adopt(b.Repair))
	}
	for _, b := range h.state.ranges {
		err = errors.Join(err, h.repairs.adopt(b.Repair))
	}
	if err != nil {
		return err
	}
	h.state.owned, err = readAll[hostOwnedKey, hostOwned](h.objects.OwnedVips)
	return err
}

func readAll[K comparable, V any](m *ebpf.Map) (map[K]V, error) {
	all := map[K]V{}
	var k K
	var v V
	it := m.Iterate()
	for it.Next(&k, &v) {
		all[k] = v
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", mapName(m), err)
	}
	return all, nil
}

// Counters implements HostTables. Bindings are those of the last Apply, ordered by key.
func (h *Host) Counters() (HostCounters, error) {
	out := HostCounters{Reasons: map[string]uint64{}}
	for i, r := range HostReasons().All {
		var perCPU []uint64
		if err := h.objects.HostReasons.Lookup(uint32(i), &perCPU); err != nil {
			return out, fmt.Errorf("read reason %s: %w", r.Name, err)
		}
		for _, n := range perCPU {
			out.Reasons[r.Name] += n
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	out.Unrepaired = h.repairs.crowded + h.state.unrepaired
	if h.flows != nil {
		out.Flows = h.flowTotalsLocked()
	}
	for _, p := range h.state.plans {
		var perCPU []hostCounter
		if err := h.objects.BindingCounts.Lookup(p.index, &perCPU); err != nil {
			return out, fmt.Errorf("read counter of binding %s: %w", bindingName(p.Binding), err)
		}
		c := BindingCounter{Binding: p.Binding}
		for _, n := range perCPU {
			c.Packets += n.Packets
			c.Bytes += n.Bytes
		}
		out.Bindings = append(out.Bindings, c)
	}
	slices.SortFunc(out.Bindings, func(a, b BindingCounter) int { return plan.CompareBindings(a.Binding, b.Binding) })
	var err error
	out.Servers, out.Unmetered, err = h.metersLocked()
	return out, err
}

// Handshakes implements HostTables.
func (h *Host) Handshakes(want func(*plan.Binding) bool) ([]BindingHandshakes, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []BindingHandshakes
	for i := range h.state.plans {
		p := &h.state.plans[i]
		if !p.Rewrite || !want(&p.Binding) {
			continue
		}
		var perCPU []hostHandshakes
		if err := h.objects.BindingAsks.Lookup(p.index, &perCPU); err != nil {
			return nil, fmt.Errorf("read handshakes of binding %s: %w", bindingName(p.Binding), err)
		}
		b := BindingHandshakes{Binding: p.Binding}
		for _, n := range perCPU {
			b.Asked += n.Asked
			b.Accepted += n.Accepted
			b.Refused += n.Refused
		}
		out = append(out, b)
	}
	return out, nil
}
