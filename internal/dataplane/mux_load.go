package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
)

// MuxOptions say where the mux's data plane lives.
type MuxOptions struct {
	// Ifindex is the interface that packets arrive by; 0: load only, attach to nothing.
	Ifindex int
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
	// Limits are the sizes of the tables; zero fields are bpf/abi.h's.
	Limits MuxLimits
	// DeviceMAC finds the address of an interface; nil: the kernel is asked.
	DeviceMAC func(ifindex int) ([6]byte, error)
}

// MuxLimits are table sizes, powers of two.
type MuxLimits struct {
	EndpointSlots, Endpoints, RingWords, Members, Backends uint32
}

// Names of pins under MuxOptions.BPFFS.
const (
	muxPinTables = "tables"
	muxPinLink   = "link"
)

// OpenMux loads the program around the pinned tables, which it adopts as they are, or around new ones, and attaches it.
// A program that is attached already is replaced in one step: no packet is lost, nothing forwarded differently.
func OpenMux(o MuxOptions) (*Mux, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raise memlock limit: %w", err)
	}
	if o.BPFFS != "" {
		if err := EnsureBPFFS(o.BPFFS); err != nil {
			return nil, err
		}
	}
	m := &Mux{options: o}
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
	if m.reasons, err = enumNames(spec, "mux_reason", "MUX_REASON_"); err != nil {
		return err
	}
	adopted, err := m.load(spec, o.BPFFS)
	if err != nil {
		return err
	}
	if m.memory, err = mapMux(&m.objects.muxMaps); err != nil {
		return err
	}
	if m.grace, err = newGrace(); err != nil {
		return err
	}
	m.tables = newMuxTables(m.memory, &m.objects.muxMaps)
	if o.DeviceMAC != nil {
		m.tables.hops.mac = o.DeviceMAC
	}
	if adopted {
		if err := m.adopt(); err != nil {
			return err
		}
	} else if err := m.publishTables(o.BPFFS); err != nil {
		return err
	}
	if o.Ifindex == 0 {
		return m.takeFramesTo(o.Address)
	}
	if o.BPFFS == "" {
		return errors.New("attach XDP: needs a directory for the pin of its link")
	}
	return m.attach(o.Ifindex)
}

// publishTables begins fresh tables and pins them.
func (m *Mux) publishTables(dir string) error {
	m.memory.config.AbiVersion = uint32(muxLimitLIMIT_ABI_VERSION)
	if dir == "" {
		return nil
	}
	return pinMaps(dir, muxPinTables, m.objects.byName())
}

// adopt takes over pinned tables. What their last owner withdrew, no reader holds after the grace period.
func (m *Mux) adopt() error {
	if err := m.grace.wait(); err != nil {
		return err
	}
	if err := m.tables.adopt(); err != nil {
		return err
	}
	return m.coverVIPs()
}

// muxSpec is the embedded object with its tables sized.
func muxSpec(l MuxLimits) (*ebpf.CollectionSpec, error) {
	spec, err := loadMux()
	if err != nil {
		return nil, fmt.Errorf("read mux object: %w", err)
	}
	sizes := map[string]uint32{
		muxMapEndpointSlots: l.EndpointSlots, muxMapEndpoints: l.Endpoints, muxMapEndpointCounts: l.Endpoints,
		muxMapRings: l.RingWords, muxMapMembers: l.Members, muxMapMemberCounts: l.Members,
		muxMapBackends: l.Backends,
	}
	for name, n := range sizes {
		if n == 0 {
			continue
		}
		if n&(n-1) != 0 || n > spec.Maps[name].MaxEntries {
			return nil, fmt.Errorf("table %s: size %d: must be a power of two up to %d", name, n, spec.Maps[name].MaxEntries)
		}
		spec.Maps[name].MaxEntries = n
	}
	if err := spec.Variables[muxVarEndpointMask].Set(spec.Maps[muxMapEndpointSlots].MaxEntries - 1); err != nil {
		return nil, fmt.Errorf("set %s: %w", muxVarEndpointMask, err)
	}
	return spec, nil
}

// load makes maps and program; true when the maps are pinned ones.
func (m *Mux) load(spec *ebpf.CollectionSpec, dir string) (bool, error) {
	var opts ebpf.CollectionOptions
	if dir != "" {
		pinned, err := openMaps(filepath.Join(dir, muxPinTables), slices.Collect(maps.Keys(m.objects.byName())))
		if err != nil {
			return false, pinsError(dir, err)
		}
		defer closeMaps(pinned)
		if pinned != nil {
			if err := checkMuxABI(pinned[muxMapConfigs]); err != nil {
				return false, pinsError(dir, err)
			}
			opts.MapReplacements = pinned
		}
	}
	err := spec.LoadAndAssign(&m.objects, &opts)
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		return false, pinsError(dir, err)
	}
	if err != nil {
		// The error's own text is the verifier's last lines; %+v prints all of them.
		return false, fmt.Errorf("load mux program: %w", err)
	}
	return opts.MapReplacements != nil, nil
}

// pinsError says what to do about pins that cannot be adopted.
func pinsError(dir string, err error) error {
	return fmt.Errorf("adopt pins in %s: %w: drain this mux, then remove them with shunt mux --stop", dir, err)
}

// checkMuxABI compares the version that the pinned tables were made by with this binary's.
func checkMuxABI(configs *ebpf.Map) error {
	if configs.ValueSize() < 4 {
		return fmt.Errorf("configuration of %d bytes", configs.ValueSize())
	}
	b, err := configs.LookupBytes(uint32(0))
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if have, want := hostOrder32(b), uint32(muxLimitLIMIT_ABI_VERSION); have != want {
		return fmt.Errorf("they have ABI version %d, this binary has %d", have, want)
	}
	return nil
}

// byName lists the maps that outlive a process: all the program's but its constants and variables.
func (m *muxMaps) byName() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		muxMapEndpointSlots: m.EndpointSlots, muxMapEndpoints: m.Endpoints, muxMapRings: m.Rings,
		muxMapMembers: m.Members, muxMapBackends: m.Backends, muxMapDevices: m.Devices,
		muxMapConfigs: m.Configs, muxMapReasons: m.Reasons, muxMapEndpointCounts: m.EndpointCounts,
		muxMapMemberCounts: m.MemberCounts,
	}
}

// MuxAttached says whether the pinned link in dir still holds its program to its interface. Any process may ask.
func MuxAttached(dir string) (bool, error) {
	l, err := link.LoadPinnedLink(filepath.Join(dir, muxPinLink), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open pinned XDP link: %w", err)
	}
	defer l.Close()
	return xdpIfindex(l) != 0, nil
}

// DetachMux takes the program off its interface and removes all pins. There need not be any.
func DetachMux(dir string) error {
	l, err := link.LoadPinnedLink(filepath.Join(dir, muxPinLink), nil)
	if err == nil {
		err = dropLink(l)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range []string{muxPinTables, muxPinTables + "_new"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("remove pins: %w", err)
		}
	}
	return nil
}
