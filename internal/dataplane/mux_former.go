package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
)

// formerTables is what is taken over from tables that cannot be adopted as they are, in a form of no version.
type formerTables struct {
	// words says what they are.
	words string
	alive map[MemberKey]bool
	hops  map[netip.Addr]NextHop
	// flowKey is that of the flow table, zero when there is none.
	flowKey [2]uint64
	// flows is the flow table, members what its entries mean by member word; nil when they cannot be carried over.
	flows   []muxFlowBucket
	members []MemberKey
	// snat is who has which ports of VIPs.
	snat map[lb.EndpointKey]formerSNAT
	// sessions are those of path nat, from these addresses; nil: there are none.
	sessions     *ebpf.Map
	natAddresses []NATAddress
	// count reads the counters; the program that counts in them may still run.
	count func() (MuxCounters, error)
	close func()
}

// errNotPinned is that a table has lost its pin, and that the kernel did not show it by the attached program (linkMaps).
var errNotPinned = errors.New("is not pinned")

// lostTables are tables of which a part is lost: nothing is taken over from them. The attached program works with them until new ones are filled.
func lostTables(cause error) *formerTables {
	return &formerTables{
		words: "lost: " + cause.Error(), alive: map[MemberKey]bool{}, hops: map[netip.Addr]NextHop{},
		count: func() (MuxCounters, error) { return noCounters(), nil }, close: func() {},
	}
}

// openSet opens all maps that are pinned in a directory by their names; nil when there is no such directory. It leaves other objects out.
func openSet(dir string) (map[string]*ebpf.Map, error) {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pin directory: %w", err)
	}
	set := map[string]*ebpf.Map{}
	for _, e := range entries {
		p, err := openPin(filepath.Join(dir, e.Name()))
		if err != nil {
			closeMaps(set)
			return nil, err
		}
		if m, ok := p.object.(*ebpf.Map); ok && hasName(m, e.Name()) {
			set[e.Name()] = m
			continue
		}
		p.close()
	}
	return set, nil
}

// readFormer reads a set of tables of any version that this binary knows.
func readFormer(dir, set string) (*formerTables, error) {
	pinned, err := openSet(filepath.Join(dir, set))
	if err != nil {
		return nil, err
	}
	if pinned[muxMapConfigs] == nil {
		closeMaps(pinned)
		return nil, fmt.Errorf("table %s %w", muxMapConfigs, errNotPinned)
	}
	version, err := muxABI(pinned[muxMapConfigs])
	var f *formerTables
	switch {
	case err != nil:
	case version == uint32(muxLimitLIMIT_ABI_VERSION) || version == abiWithoutNumbers || version == abiWithoutSNAT:
		f, err = formerOf(pinned, version)
	case version == 1:
		f, err = formerOfABI1(pinned)
	default:
		err = abiError(version)
	}
	if err != nil {
		closeMaps(pinned)
		return nil, err
	}
	f.words = fmt.Sprintf("ABI version %d, %d members", version, len(f.alive))
	return f, nil
}

// ABI versions that are the same as this one but for a table.
const (
	// abiWithoutNumbers has sessions of path nat without sequence numbers, or none.
	abiWithoutNumbers = 3
	// abiWithoutSNAT has no blocks of SNAT either.
	abiWithoutSNAT = 2
)

// formerOf reads tables of this binary's own layout, whatever their sizes, or of one that is nearly the same. It owns the maps when it succeeds.
func formerOf(pinned map[string]*ebpf.Map, version uint32) (*formerTables, error) {
	m := &muxMaps{}
	if err := fillMaps(m, pinned, version); err != nil {
		return nil, err
	}
	if err := checkFormerSessions(m.NatSessions); err != nil {
		return nil, err
	}
	tick, err := flowTick()
	if err != nil {
		return nil, err
	}
	hz, err := jiffiesPerSecond()
	if err != nil {
		return nil, err
	}
	mem, err := mapMux(m)
	if err != nil {
		return nil, err
	}
	t := newMuxTables(mem, tick, hz)
	if err := t.adopt(); err != nil {
		mem.close()
		return nil, err
	}
	f := &formerTables{alive: map[MemberKey]bool{}, hops: t.hops.wanted, flowKey: [2]uint64{mem.config.FlowKey.K0, mem.config.FlowKey.K1}}
	f.close = func() { mem.close(); closeMaps(pinned) }
	f.snat = t.snatOf()
	f.sessions = mem.natSessions
	if mem.natAddresses != nil {
		f.natAddresses = mem.addressesOfNAT()
	}
	f.flows, f.members = mem.flows, make([]MemberKey, len(mem.members))
	for key, e := range t.entries {
		for id := range e.members.all() {
			f.members[e.block.first+uint32(id)] = MemberKey{key, id}
			f.alive[MemberKey{key, id}] = load(t.word(e, id))&memberAlive != 0
		}
	}
	f.count = func() (MuxCounters, error) {
		c := noCounters()
		for i, r := range MuxReasons().All {
			for cell := range mem.reasons.of(uint32(i)) {
				c.Reasons[r.Name] += load(cell)
			}
		}
		for key, e := range t.entries {
			if key.Protocol != 0 {
				t.count(key, e, c)
			}
		}
		return c, nil
	}
	return f, nil
}

func noCounters() MuxCounters {
	return MuxCounters{Reasons: map[string]uint64{}, Members: map[MemberKey]Counter{}, Endpoints: map[lb.EndpointKey]Counter{}, Answers: map[lb.EndpointKey]Counter{}, Refused: map[lb.EndpointKey]Counter{}}
}

// muxMapsSince came without another ABI version: where they are not, no endpoint has to do with them.
var muxMapsSince = []string{muxMapQuicSets, muxMapCookieSets, muxMapNatSessions, muxMapNatPorts, muxMapNatOpenings, muxMapNatAddresses}

// fillMaps gives every field of m the pinned map of its name; all that outlive a process, and that this ABI version has, must be
// there.
func fillMaps(m *muxMaps, pinned map[string]*ebpf.Map, version uint32) error {
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		if found := pinned[v.Type().Field(i).Tag.Get("ebpf")]; found != nil {
			v.Field(i).Set(reflect.ValueOf(found))
		}
	}
	for name, found := range m.byName() {
		later := slices.Contains(muxMapsSince, name) || name == muxMapSnatBlocks && version == abiWithoutSNAT
		if found == nil && !later {
			return fmt.Errorf("table %s %w", name, errNotPinned)
		}
	}
	return nil
}

// carry gives the tables, as the agent's part of their counters, what the former ones counted. Doing it again changes
// nothing: no other counts were folded into that part since they were made.
func (t *muxTables) carry(c MuxCounters) {
	for i, r := range MuxReasons().All {
		*t.mem.reasons.own(uint32(i)) = c.Reasons[r.Name]
	}
	for key, e := range t.entries {
		if key.Protocol == 0 {
			continue
		}
		rest := c.Endpoints[key]
		for id := range e.members.all() {
			n := c.Members[MemberKey{key, id}]
			*t.mem.memberCounts.own(e.block.first + uint32(id)) = muxCounter{Packets: n.Packets, Bytes: n.Bytes}
			// An endpoint's total is read a moment before or after its members'.
			rest.Packets -= min(n.Packets, rest.Packets)
			rest.Bytes -= min(n.Bytes, rest.Bytes)
		}
		*t.mem.endpointCounts.own(e.index) = muxCounter{Packets: rest.Packets, Bytes: rest.Bytes}
	}
}
