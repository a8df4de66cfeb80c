package dataplane

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// MuxOptions say where the mux's data plane lives.
type MuxOptions struct {
	// Ifindex is the interface that packets arrive by; 0: load only, attach to nothing.
	Ifindex int
	// Others are further interfaces that packets arrive by.
	Others []int
	// Mode is how the program is attached; empty: native.
	Mode XDPMode
	// Redirect makes frames leave the interface they came in by as redirected ones: XDP_TX on veth is lost unless the
	// peer runs XDP too.
	Redirect bool
	// BPFFS is the directory of the pins; empty: nothing is pinned and all ends with the process.
	BPFFS string
	// Address is the one that frames must be sent to, others are the kernel's; zero: the interface's. Without an
	// interface zero takes all frames.
	Address [6]byte
	// Limits are the sizes of the tables; zero fields are those of DefaultMuxLimits.
	Limits MuxLimits
	// DeviceMAC finds the address of an interface; nil: the kernel is asked.
	DeviceMAC func(ifindex int) ([6]byte, error)
	// Log hears of migrations; nil: nobody does.
	Log *slog.Logger
	// testStep is called at each step of a migration; an error ends it there, as a crash would.
	testStep func(step string) error
	// testClock makes the programs take the time from setJiffies.
	testClock bool
	// testSpec changes the program before it is loaded; nil: nobody does.
	testSpec func(*ebpf.CollectionSpec)
}

// MuxLimits are table sizes, at most what bpf/abi.h says: powers of two, but for probes.
type MuxLimits struct {
	Endpoints uint32 // VIPs included: 136 bytes each, and 16 per CPU
	Members   uint32 // of all endpoints together: 8 bytes each, and 16 per CPU
	Backends  uint32 // 64 bytes each
	RingWords uint32 // four slots of rings each: 8 bytes
	Flows     uint32 // 8 bytes each
	Sources   uint32 // words of source lists: 8 bytes, for at most two IPv4 turns or half an IPv6 one
	SNAT      uint32 // VIPs whose ports are leased to servers: 16448 bytes each, and once more
	QUIC      uint32 // endpoints whose QUIC connection ids are read: 2816 bytes each
	// Connections with records (MuxEndpoint.Track): 57 bytes each, and 1 KiB or more per CPU; 0: none
	Connections uint32
	NAT         uint32 // sessions of path nat: about 500 bytes each; 0: none
	Probes      uint32 // rules of the packet prober, a multiple of 64: 152 bytes each with their texts
}

// DefaultMuxLimits holds 20,000 endpoints of 10 backends with rings of 1,024 slots: 200 MiB on a machine of two CPUs.
var DefaultMuxLimits = MuxLimits{Endpoints: 1 << 16, Members: 1 << 19, Backends: 1 << 18, RingWords: 1 << 23, Flows: 1 << 22, Sources: 1 << 21, SNAT: 1 << 10, QUIC: 1 << 8, Connections: 1 << 16, NAT: 1 << 16, Probes: 1 << 16}

// MaxMuxLimits are the largest sizes of bpf/abi.h.
var MaxMuxLimits = MuxLimits{
	Endpoints: uint32(muxLimitLIMIT_ENDPOINTS), Members: uint32(muxLimitLIMIT_MEMBERS), Backends: uint32(muxLimitLIMIT_BACKENDS),
	RingWords: uint32(muxLimitLIMIT_RING_WORDS), Flows: uint32(muxLimitLIMIT_FLOW_ENTRIES),
	SNAT: uint32(muxLimitLIMIT_SNAT_VIPS), QUIC: uint32(muxLimitLIMIT_QUIC_SETS) / 2, NAT: uint32(muxNatLimitLIMIT_NAT_SESSIONS),
	Connections: uint32(muxConnectionLimitLIMIT_CONNECTIONS), Probes: uint32(muxProbeLimitLIMIT_PROBE_RULES),
}

// Names of pins under MuxOptions.BPFFS.
const (
	muxPinTables = "tables"
	muxPinLink   = "link"
)

// muxLinkPrograms are the names of the programs behind a mux's links.
var muxLinkPrograms = []string{muxProgMux, watchProgMuxWatch}

func (o MuxOptions) log() *slog.Logger {
	if o.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Log
}

// OpenMux loads the program around the pinned tables, which it adopts as they are, or around new ones, and attaches it.
// A program that is attached already is replaced in one step: no packet is lost, nothing forwarded differently. Tables of
// other sizes, or of an ABI version that this binary can read, are migrated: their program goes on until the first Apply
// has filled the new ones. Tables of any other version are refused.
func OpenMux(o MuxOptions) (*Mux, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raise memlock limit: %w", err)
	}
	if o.BPFFS != "" {
		if err := EnsureBPFFS(o.BPFFS); err != nil {
			return nil, err
		}
	}
	if err := checkOthers(o); err != nil {
		return nil, err
	}
	m := &Mux{options: o, natAlone: map[muxNatKey]natAlone{}, pinsSeen: map[string]fs.FileInfo{}}
	if o.BPFFS != "" {
		var err error
		if m.lock, err = lockPins(o.BPFFS); err == nil {
			err = repairMuxPins(o.BPFFS, slices.Collect(maps.Keys(m.objects.byName())), o.log())
		}
		if err != nil {
			m.Close()
			return nil, err
		}
	}
	if err := m.open(o); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func (m *Mux) open(o MuxOptions) error {
	spec, err := muxSpec(o.Limits)
	if err != nil {
		return err
	}
	if o.Redirect {
		if err := spec.Variables[muxVarBounceRedirects].Set(uint32(1)); err != nil {
			return fmt.Errorf("set %s: %w", muxVarBounceRedirects, err)
		}
	}
	if o.testClock {
		if err := spec.Variables[muxVarTestClock].Set(uint32(1)); err != nil {
			return fmt.Errorf("set %s: %w", muxVarTestClock, err)
		}
	}
	if o.testSpec != nil {
		o.testSpec(spec)
	}
	m.spec = spec
	if m.grace, err = newGrace(); err != nil {
		return err
	}
	var found sets
	if o.BPFFS != "" {
		if found, err = findSets(o.BPFFS, o.log()); err != nil {
			return err
		}
	}
	adopted, err := m.load(spec, found.current)
	if err != nil {
		return err
	}
	if m.memory, err = mapMux(&m.objects.muxMaps); err != nil {
		return err
	}
	if m.probes, err = openProbes(m); err != nil {
		return err
	}
	tick, err := flowTick()
	if err != nil {
		return err
	}
	hz, err := jiffiesPerSecond()
	if err != nil {
		return err
	}
	m.memory.natRoom = o.Limits.NAT
	m.tables = newMuxTables(m.memory, tick, hz)
	m.memory.scatterCursors()
	if m.connections, err = openConnections(m.memory, m.objects.TrackDepot); err != nil {
		return err
	}
	m.tables.connections = m.connections
	if m.tickShift, err = tickShift(); err != nil {
		return err
	}
	if o.DeviceMAC != nil {
		m.tables.hops.mac = o.DeviceMAC
	}
	switch {
	case adopted:
		if err := m.adopt(); err != nil {
			return err
		}
	case m.former != nil:
		return m.prepare()
	default:
		if err := m.publishTables(o.BPFFS); err != nil {
			return err
		}
	}
	if o.Ifindex == 0 {
		return errors.Join(m.takeFramesTo(o.Address), m.endMigration(found))
	}
	if o.BPFFS == "" {
		return errors.New("attach XDP: needs a directory for the pin of its link")
	}
	if err := m.attach(o.Ifindex); err != nil {
		return err
	}
	// Not before: a further interface may have had the program before until now.
	return m.endMigration(found)
}

// publishTables begins fresh tables and pins them.
func (m *Mux) publishTables(dir string) error {
	m.begin()
	if dir == "" {
		return nil
	}
	return pinMaps(dir, muxPinTables, m.objects.byName(), m.options.log())
}

// newSipHashKey returns a random key.
func newSipHashKey() (k0, k1 uint64) {
	key := make([]byte, 16)
	rand.Read(key)
	return binary.LittleEndian.Uint64(key), binary.LittleEndian.Uint64(key[8:])
}

// spread makes the key of outer sources, unless the tables have one: those of builds before it have zeros.
func (m *Mux) spread() {
	if key := &m.memory.config.SpreadKey; key.K0|key.K1 == 0 {
		key.K0, key.K1 = newSipHashKey()
	}
}

// begin writes what fresh tables start with.
func (m *Mux) begin() {
	m.memory.config.FlowKey.K0, m.memory.config.FlowKey.K1 = newSipHashKey()
	m.spread()
	m.memory.config.AbiVersion = uint32(muxLimitLIMIT_ABI_VERSION)
}

// prepare begins fresh tables that take over from others once a plan fills them.
func (m *Mux) prepare() error {
	m.begin()
	if key := m.former.flowKey; key != [2]uint64{} {
		m.memory.config.FlowKey.K0, m.memory.config.FlowKey.K1 = key[0], key[1]
	}
	m.idle.Store(true)
	m.tables.hops.wanted = m.former.hops
	m.takeSNAT(m.former)
	if m.memory.natRoom > 0 {
		m.memory.publishNAT(m.former.natAddresses)
	}
	m.options.log().Info("the pinned tables cannot be adopted as they are: their program forwards until the first plan has filled new ones",
		"pinned", m.former.words)
	if m.options.Ifindex == 0 {
		return m.takeFramesTo(m.options.Address)
	}
	return m.followAddress(m.options.Ifindex)
}

// adopt takes over pinned tables. What their last owner withdrew, no reader holds after the grace period.
func (m *Mux) adopt() error {
	if err := m.grace.wait(); err != nil {
		return err
	}
	m.spread()
	if err := m.tables.adopt(); err != nil {
		return err
	}
	return m.coverVIPs()
}

// endMigration ends one to adopted tables that was cut short.
func (m *Mux) endMigration(found sets) error {
	if found.current != muxPinNext || m.former != nil {
		return nil
	}
	err := errors.New("their pins are gone")
	if found.former != "" {
		m.ending, err = readFormer(m.options.BPFFS, found.former)
	}
	if err != nil {
		m.options.log().Error("the counters of tables that were migrated are lost", "error", err)
		return m.moveSets()
	}
	return m.settleLocked()
}

// load makes maps and program; true when the maps are pinned ones. m.former is what cannot be adopted as it is.
func (m *Mux) load(spec *ebpf.CollectionSpec, set string) (bool, error) {
	dir := m.options.BPFFS
	if set == "" {
		return false, m.loadProgram(spec, nil)
	}
	pinned, err := openSet(filepath.Join(dir, set))
	if err != nil {
		return false, pinsError(dir, err)
	}
	defer closeMaps(pinned)
	if muxAdoptable(spec, pinned, slices.Collect(maps.Keys(m.objects.byName()))) {
		err := m.loadProgram(spec, pinned)
		if errors.Is(err, ebpf.ErrMapIncompatible) {
			return false, pinsError(dir, err)
		}
		return err == nil, err
	}
	if err := m.grace.wait(); err != nil {
		return false, err
	}
	m.former, err = readFormer(dir, set)
	if errors.Is(err, errNotPinned) {
		m.options.log().Error("tables are lost: a pin was removed, and the kernel does not show the tables of the attached program", "tables", filepath.Join(dir, set), "error", err)
		m.former, err = lostTables(err), nil
	}
	if err != nil {
		return false, pinsError(dir, err)
	}
	if set != muxPinTables {
		// The set before it has nothing to give any more.
		if err := m.renameSet(set); err != nil {
			return false, err
		}
	}
	return false, m.loadProgram(spec, nil)
}

// renameSet makes a set the one that counts.
func (m *Mux) renameSet(set string) error {
	dir := m.options.BPFFS
	for _, name := range []string{muxPinTables, muxPinOld} {
		if err := removeSet(dir, name, m.options.log()); err != nil {
			return err
		}
	}
	if err := os.Rename(filepath.Join(dir, set), filepath.Join(dir, muxPinTables)); err != nil {
		return fmt.Errorf("pin tables: %w", err)
	}
	return nil
}

// muxAdoptable says whether pinned tables are those that spec asks for.
func muxAdoptable(spec *ebpf.CollectionSpec, pinned map[string]*ebpf.Map, names []string) bool {
	if pinned[muxMapConfigs] == nil {
		return false
	}
	if version, err := muxABI(pinned[muxMapConfigs]); err != nil || version != uint32(muxLimitLIMIT_ABI_VERSION) {
		return false
	}
	for _, name := range names {
		if pinned[name] == nil || spec.Maps[name].Compatible(pinned[name]) != nil {
			return false
		}
	}
	return true
}

// loadProgram loads the program around the maps that are given, and makes the others.
func (m *Mux) loadProgram(spec *ebpf.CollectionSpec, given map[string]*ebpf.Map) error {
	loaded := struct {
		*muxObjects
		BSS *ebpf.Map `ebpf:".bss"`
	}{muxObjects: &m.objects}
	if err := spec.LoadAndAssign(&loaded, &ebpf.CollectionOptions{MapReplacements: given}); err != nil {
		// The error's own text is the verifier's last lines; %+v prints all of them.
		return fmt.Errorf("load mux program: %w", err)
	}
	m.bss = loaded.BSS
	return nil
}

// pinsError says what to do about pins that cannot be adopted.
func pinsError(dir string, err error) error {
	return fmt.Errorf("adopt pins in %s: %w: drain this mux, then remove them with shunt mux --stop", dir, err)
}

// muxABI reads the version that pinned tables were made by.
func muxABI(configs *ebpf.Map) (uint32, error) {
	if configs.ValueSize() < 4 {
		return 0, fmt.Errorf("configuration of %d bytes", configs.ValueSize())
	}
	b, err := configs.LookupBytes(uint32(0))
	if err != nil {
		return 0, fmt.Errorf("read configuration: %w", err)
	}
	return hostOrder32(b), nil
}

// abiError says that tables cannot be read.
func abiError(have uint32) error {
	return fmt.Errorf("they have ABI version %d, this binary has %d and reads 1 to 3 too", have, uint32(muxLimitLIMIT_ABI_VERSION))
}

// byName lists the maps that outlive a process: all the program's but its constants, its variables, the rules of probes, what
// schedulers count and the records of connections.
func (m *muxMaps) byName() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		muxMapEndpointSlots: m.EndpointSlots, muxMapEndpointExtras: m.EndpointExtras, muxMapRings: m.Rings,
		muxMapMembers: m.Members, muxMapBackends: m.Backends, muxMapFlows: m.Flows, muxMapFragments: m.Fragments, muxMapPings: m.Pings, muxMapDevices: m.Devices,
		muxMapConfigs: m.Configs, muxMapReasons: m.Reasons, muxMapEndpointCounts: m.EndpointCounts,
		muxMapMemberCounts: m.MemberCounts, muxMapPortRanges: m.PortRanges, muxMapVipGuards: m.VipGuards,
		muxMapSourceLists: m.SourceLists, muxMapSourceWords: m.SourceWords, muxMapDatagrams: m.Datagrams, muxMapSnatBlocks: m.SnatBlocks,
		muxMapQuicSets: m.QuicSets, muxMapCookieSets: m.CookieSets, muxMapNatSessions: m.NatSessions, muxMapNatPorts: m.NatPorts, muxMapNatOpenings: m.NatOpenings, muxMapNatAddresses: m.NatAddresses,
	}
}

// MuxAttached says whether the pinned links in dir still hold the program to an interface. Any process may ask.
func MuxAttached(dir string) (bool, error) {
	l, _, err := openOwnLink(filepath.Join(dir, muxPinLink), muxLinkPrograms...)
	if err != nil {
		return false, err
	}
	if l == nil {
		return othersAttached(dir)
	}
	defer l.Close()
	if xdpIfindex(l) != 0 {
		return true, nil
	}
	return othersAttached(dir)
}

// DetachMux takes the program off its interfaces and removes all its pins. There need not be any. Objects of others stay, also those at the paths of pins.
func DetachMux(dir string) error {
	l, _, err := openOwnLink(filepath.Join(dir, muxPinLink), muxLinkPrograms...)
	if l != nil {
		err = dropLink(l)
	}
	if err != nil {
		return err
	}
	if err := dropOthers(dir, nil); err != nil {
		return err
	}
	for _, name := range muxSets {
		if err := dropSet(dir, name); err != nil {
			return err
		}
	}
	return nil
}
