package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// HostProbeTables are a host's ProbeTables, with the devices that its program takes answers on. *HostProbes is the real one,
// *FakeHostProbes the twin.
type HostProbeTables interface {
	ProbeTables
	// Follow puts the program on these devices, by index, and takes it off others. It tells which devices have it, in order; the error
	// says why the others do not. A rule whose next hop is by another device is refused.
	Follow(devices []int) (on []int, err error)
	// Close takes the program off all devices. The tables must not be used any more.
	Close() error
}

// HostProbes implements HostProbeTables. Nothing of it is pinned: program and tables end with the process, whatever ends it.
type HostProbes struct {
	Probes
	objects hostProbeObjects

	// beside is where on a device's ingress the program goes.
	beside func(ifindex int) link.Anchor

	devices sync.Mutex
	links   map[int]link.Link // by device; guarded by devices
}

var _ HostProbeTables = (*HostProbes)(nil)

// OpenProbes makes tables for so many rules, a multiple of 64, and loads the program that takes answers to probes; it is
// on no device yet. Closing the Host does not close them.
func (h *Host) OpenProbes(rules uint32) (*HostProbes, error) {
	if most := uint32(muxProbeLimitLIMIT_PROBE_RULES); rules == 0 || rules%probesStep != 0 || rules > most {
		return nil, fmt.Errorf("table size: probes: %d: must be a multiple of %d up to %d", rules, probesStep, most)
	}
	spec, err := loadHostProbe()
	if err != nil {
		return nil, fmt.Errorf("read host probe object: %w", err)
	}
	p := &HostProbes{links: map[int]link.Link{}, beside: h.besideServe}
	p.key, p.word = probeNumberKey(), p.wordOf
	spec.Maps[hostProbeMapProbeRules].MaxEntries = rules
	spec.Maps[hostProbeMapProbeResults].MaxEntries = rules
	spec.Maps[hostProbeMapProbeTexts].MaxEntries = probeTexts(rules)
	if err := spec.Variables[hostProbeVarHostProbeKey].Set(uint64(p.key)); err != nil {
		return nil, fmt.Errorf("set %s: %w", hostProbeVarHostProbeKey, err)
	}
	if h.testClock {
		if err := spec.Variables[hostProbeVarHostProbeClock].Set(uint32(1)); err != nil {
			return nil, fmt.Errorf("set %s: %w", hostProbeVarHostProbeClock, err)
		}
	}
	shared := map[string]*ebpf.Map{hostProbeMapHostReasons: h.objects.HostReasons}
	if err := spec.LoadAndAssign(&p.objects, &ebpf.CollectionOptions{MapReplacements: shared}); err != nil {
		return nil, fmt.Errorf("load host probe program: %w", err)
	}
	var lines []muxProbeText
	for _, err := range []error{
		mapTable(&p.memory, p.objects.ProbeRules, &p.rules), mapTable(&p.memory, p.objects.ProbeResults, &p.results),
		mapTable(&p.memory, p.objects.ProbeTexts, &lines),
	} {
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	p.texts = newTextStore(lines)
	return p, nil
}

// wordOf is the word of a next hop: the program answers by the device and to the neighbour that it hears.
func (p *HostProbes) wordOf(hop NextHop) (uint64, error) {
	p.devices.Lock()
	defer p.devices.Unlock()
	if p.links[hop.Ifindex] == nil || hop.Tag != 0 {
		return 0, errors.New("the way to the server does not lead out of a device of servers")
	}
	return macWord(hop.MAC) | 1<<muxNexthopBitNEXTHOP_VALID_SHIFT, nil
}

// Follow implements HostProbeTables. The program is the first of a device but for that which sees what servers send, so that it sees
// answers before others may take them; what it does not take goes on to them.
func (p *HostProbes) Follow(devices []int) (on []int, err error) {
	p.devices.Lock()
	defer p.devices.Unlock()
	var errs []error
	for ifindex, l := range p.links {
		// A device that is gone took its link along.
		if !slices.Contains(devices, ifindex) || linkIfindex(l) != ifindex {
			delete(p.links, ifindex)
			errs = append(errs, l.Close())
		}
	}
	for _, ifindex := range devices {
		if p.links[ifindex] != nil {
			continue
		}
		l, err := link.AttachTCX(link.TCXOptions{
			Interface: ifindex, Program: p.objects.HostProbe, Attach: ebpf.AttachTCXIngress, Anchor: p.beside(ifindex),
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("attach %s to interface %d: %w", ebpf.AttachTCXIngress, ifindex, err))
			continue
		}
		p.links[ifindex] = l
	}
	return slices.Sorted(maps.Keys(p.links)), errors.Join(errs...)
}

// Close implements HostProbeTables.
func (p *HostProbes) Close() error {
	_, err := p.Follow(nil)
	p.memory.close()
	return errors.Join(err, p.objects.Close())
}
