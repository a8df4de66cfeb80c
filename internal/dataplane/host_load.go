package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/ring"
)

// HostOptions say where the host programs run and where they are pinned.
type HostOptions struct {
	// Ifindex of the uplink: tunnel packets come in and answers leave by it.
	Ifindex int
	// Dir is a directory on a bpf file system, used by nothing else. It is made when it is missing.
	Dir string
	// Flows is the size of the flow table, a power of two from MinHostFlows to MaxHostFlows: 104 bytes each. 0: what the pins have, else
	// DefaultHostFlows.
	Flows uint32
	// Last puts programs behind those of others that a device has already, where they are not there yet: else they are the first.
	Last bool
	// Log receives warnings of repaired pins; nil: none.
	Log *slog.Logger
	// testClock makes the programs' time the variable host_test_now.
	testClock bool
	// testTimeBits, if not 0, is how many bits of a stamp are time.
	testTimeBits uint32
}

func (o HostOptions) log() *slog.Logger {
	if o.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Log
}

// Host is the data plane of one host: two tcx programs on the uplink, one on each device of servers, and their pinned maps.
type Host struct {
	dir     string
	log     *slog.Logger
	objects hostObjects
	// testClock is HostOptions'.
	testClock bool
	// testNoCO makes the kernel one without coKfunc.
	testNoCO bool
	flows    *flowTable
	// connections is of mu, but for what it says itself.
	connections connections
	now         func() time.Duration // CLOCK_MONOTONIC

	// tending guards the links of the uplink. Taken before serving.
	tending sync.Mutex
	links   []link.Link // by hostHooks
	co      *HostCO     // nil: not loaded
	// pinsSeen are the files of pins that are good, by path.
	pinsSeen map[string]fs.FileInfo

	// serving guards what follows. Nothing else is taken under it.
	serving sync.Mutex
	serve   map[int]link.Link               // on servers' devices, by device
	last    bool                            // as HostOptions.Last; never changes
	senders map[hostSenderKey]hostSenderUse // what the map holds

	// sweeping is held during a step of a sweep. Taken before mu.
	sweeping sync.Mutex
	sweep    hostSweep // last: guarded by mu too

	mu      sync.Mutex
	state   hostTables // what the maps hold
	mtu     uint32     // of the last Apply
	repairs *repairTables
	snat    *snatTables // its own lock is taken after mu
	// deferred frees records of repairs and cells of cookie keys.
	deferred deferredFree
}

var _ HostTables = (*Host)(nil)

// hostHook is one of the two attachment points, and the name of its link's pin.
type hostHook struct {
	pin     string
	program string // its name
	attach  ebpf.AttachType
	prog    func(*hostObjects) *ebpf.Program
}

var hostHooks = []hostHook{
	{"link_in", hostProgHostIn, ebpf.AttachTCXIngress, func(o *hostObjects) *ebpf.Program { return o.HostIn }},
	{"link_out", hostProgHostOut, ebpf.AttachTCXEgress, func(o *hostObjects) *ebpf.Program { return o.HostOut }},
}

// OpenHost loads the programs around the pinned maps (flow state included), or around new ones, and attaches them.
// Programs that are attached already are replaced in one step: no packet is lost.
func OpenHost(o HostOptions) (*Host, error) {
	if err := checkFlows(o.Flows); err != nil {
		return nil, err
	}
	if err := EnsureBPFFS(o.Dir); err != nil {
		return nil, err
	}
	spec, err := hostSpec()
	if err != nil {
		return nil, err
	}
	if o.testClock {
		if err := spec.Variables[hostVarHostTestClock].Set(uint32(1)); err != nil {
			return nil, fmt.Errorf("set %s: %w", hostVarHostTestClock, err)
		}
	}
	if o.testTimeBits != 0 {
		if err := spec.Variables[hostVarHostTimeBits].Set(o.testTimeBits); err != nil {
			return nil, fmt.Errorf("set %s: %w", hostVarHostTimeBits, err)
		}
	}
	if err := repairHostPins(o.Dir, spec, o.log()); err != nil {
		return nil, err
	}
	if err := checkHostABI(o.Dir); err != nil {
		return nil, err
	}
	if err := finishResize(o); err != nil {
		return nil, err
	}
	key, err := sizeFlows(spec, o)
	if err != nil {
		return nil, err
	}
	h := &Host{dir: o.Dir, log: o.log(), now: monotonic, testClock: o.testClock, serve: map[int]link.Link{}, last: o.Last, pinsSeen: map[string]fs.FileInfo{}}
	h.deferred.mu = &h.mu
	opts := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: o.Dir}}
	if err := spec.LoadAndAssign(&h.objects, opts); err != nil {
		if errors.Is(err, ebpf.ErrMapIncompatible) {
			return nil, fmt.Errorf("load host programs: pins in %s are of another version: stop the host agent with --stop first: %w", o.Dir, err)
		}
		return nil, fmt.Errorf("load host programs: %w", err)
	}
	if err := h.begin(o.Ifindex, key); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// begin reads what the maps hold and attaches the programs.
func (h *Host) begin(ifindex int, key hostFlowSetup) error {
	var err error
	if h.repairs, err = openRepairs(&h.objects, &h.deferred); err != nil {
		return err
	}
	if h.flows, err = mapFlows(&h.objects.hostMaps); err != nil {
		return err
	}
	h.flows.addrs.cleared = h.clearMeter
	h.connections = newConnections(h.flows.counts)
	h.flows.setup.Key = key.Key
	h.flows.key = ring.Key{K0: key.Key.K0, K1: key.Key.K1}
	if err := h.migrateHost(); err != nil {
		return err
	}
	if err := h.readTables(); err != nil {
		return err
	}
	if err := h.adoptBindings(); err != nil {
		return err
	}
	h.bindSNAT()
	if h.snat, err = openSNAT(&h.objects, &h.flows.addrs, h.repairs.grace, func() uint32 { return uint32(tagTick(h.now())) }); err != nil {
		return err
	}
	if err := h.migrateFlows(); err != nil {
		return err
	}
	if err := h.adoptCO(); err != nil {
		return err
	}
	if err := h.tune(uint64(clockAhead())); err != nil {
		return err
	}
	for _, hook := range hostHooks {
		l, err := attachHook(hook, h, ifindex)
		if err != nil {
			return err
		}
		h.links = append(h.links, l)
	}
	if err := h.adoptServe(); err != nil {
		return err
	}
	if err := h.migrateFlows(); err != nil {
		return err
	}
	h.connections.adopt(h.flows, tagTick(h.now()))
	return h.finishMigration()
}

// hostSpec is the embedded object with its maps pinned by name, but for what lives no longer than a packet.
func hostSpec() (*ebpf.CollectionSpec, error) {
	spec, err := loadHost()
	if err != nil {
		return nil, fmt.Errorf("read host object: %w", err)
	}
	for _, m := range spec.Maps {
		if hostPinned(m.Name) {
			m.Pinning = ebpf.PinByName
		}
	}
	version, err := features.LinuxVersionCode()
	if err != nil {
		return nil, fmt.Errorf("read kernel version: %w", err)
	}
	// BPF_F_IPV6 came with Linux 6.16.
	if version >= 6<<16|16<<8 {
		if err := spec.Variables[hostVarHostIpv6CsumFlag].Set(uint64(1 << 7)); err != nil {
			return nil, fmt.Errorf("set %s: %w", hostVarHostIpv6CsumFlag, err)
		}
	}
	return spec, nil
}

// checkHostABI compares the version that the pinned maps were made by with this binary's.
func checkHostABI(dir string) error {
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, hostMapHostConfigs), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open pinned map %s: %w", hostMapHostConfigs, err)
	}
	defer m.Close()
	var c hostHostConfig
	if err := m.Lookup(uint32(0), &c); err != nil {
		return fmt.Errorf("read ABI version of pins in %s: %w; stop the host agent with --stop first", dir, err)
	}
	// 0: the maps were made, but their maker died before it wrote the version.
	if c.AbiVersion > uint32(hostHostLimitLIMIT_HOST_ABI_VERSION) {
		return fmt.Errorf("pins in %s have ABI version %d, this binary has %d: stop the host agent with --stop first",
			dir, c.AbiVersion, hostHostLimitLIMIT_HOST_ABI_VERSION)
	}
	return nil
}

// place is where among others' programs one of a device goes.
func (h *Host) place() link.Anchor {
	if h.last {
		return link.Tail()
	}
	return link.Head()
}

// attachHook puts the new program into the pinned link when that is on the wanted interface, where it keeps its place among others', else
// attaches it anew and takes the old link away afterwards.
func attachHook(hook hostHook, h *Host, ifindex int) (link.Link, error) {
	pin := filepath.Join(h.dir, hook.pin)
	old, err := takeOwnLink(pin, h.log, hook.program)
	if err != nil {
		return nil, err
	}
	if old != nil {
		if linkIfindex(old) == ifindex {
			if err := old.Update(hook.prog(&h.objects)); err != nil {
				old.Close()
				return nil, fmt.Errorf("replace program of %s: %w", pin, err)
			}
			return old, nil
		}
		defer old.Close()
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: hook.prog(&h.objects), Attach: hook.attach, Anchor: h.place()})
	if err != nil {
		return nil, fmt.Errorf("attach %s to interface %d: %w", hook.attach, ifindex, err)
	}
	if old != nil {
		if err := release(old); err != nil {
			l.Close()
			return nil, fmt.Errorf("release %s: %w", pin, err)
		}
	}
	if err := l.Pin(pin); err != nil {
		l.Close()
		return nil, fmt.Errorf("pin link %s: %w", pin, err)
	}
	return l, nil
}

// release detaches a link and removes its pin. An interface that is gone took its link along.
func release(l link.Link) error {
	if linkIfindex(l) != 0 {
		if err := l.Detach(); err != nil {
			return err
		}
	}
	return l.Unpin()
}

// linkIfindex is the interface of a tcx link, 0 when that is gone.
func linkIfindex(l link.Link) int {
	info, err := l.Info()
	if err != nil || info.TCX() == nil {
		return 0
	}
	return int(info.TCX().Ifindex)
}

// HostAttached tells whether programs pinned in dir are attached to a living interface, both of them.
func HostAttached(dir string) (bool, error) {
	for _, hook := range hostHooks {
		l, _, err := openOwnLink(filepath.Join(dir, hook.pin), hook.program)
		if err != nil || l == nil {
			return false, err
		}
		ifindex := linkIfindex(l)
		l.Close()
		if ifindex == 0 {
			return false, nil
		}
	}
	return true, nil
}

// DetachHost detaches the programs pinned in dir and removes the pins, flow state included, and dir if nothing else is
// in it. Objects of others stay, also those at the paths of pins. Nothing pinned is no error.
func DetachHost(dir string) error {
	if err := detachCO(dir); err != nil {
		return err
	}
	if err := detachServe(dir); err != nil {
		return err
	}
	for _, hook := range hostHooks {
		l, _, err := openOwnLink(filepath.Join(dir, hook.pin), hook.program)
		if err != nil {
			return err
		}
		if l == nil {
			continue
		}
		err = release(l)
		l.Close()
		if err != nil {
			return fmt.Errorf("detach %s: %w", hook.pin, err)
		}
	}
	spec, err := hostSpec()
	if err != nil {
		return err
	}
	pins := append([]string{hostMapBindingsOne}, formerFlowPins...)
	for _, m := range spec.Maps {
		if m.Pinning == ebpf.PinByName {
			pins = append(pins, m.Name)
		}
	}
	for _, pin := range pins {
		if err := removeOwnMap(filepath.Join(dir, pin), formerTable(pin)); err != nil {
			return err
		}
	}
	err = os.Remove(dir)
	if err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return fmt.Errorf("remove pins: %w", err)
}

// Close implements HostTables.
func (h *Host) Close() error {
	h.sweeping.Lock()
	defer h.sweeping.Unlock()
	h.deferred.close()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.snat != nil {
		h.snat.close()
	}
	if h.flows != nil {
		h.flows.close()
		h.flows = nil
	}
	h.tending.Lock()
	defer h.tending.Unlock()
	var errs []error
	for _, l := range h.links {
		errs = append(errs, l.Close())
	}
	h.serving.Lock()
	defer h.serving.Unlock()
	for ifindex, l := range h.serve {
		delete(h.serve, ifindex)
		errs = append(errs, l.Close())
	}
	if h.repairs != nil {
		h.repairs.close()
	}
	return errors.Join(append(errs, h.objects.Close())...)
}
