package proofrun

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Published makes a server's timestamps carry cookies as Cheetah's authors published it, with a memory for each connection. See bpf/proof/published.bpf.c.
type Published struct {
	objects publishedObjects
	links   []link.Link
}

// PublishedCounts are what it did so far.
type PublishedCounts struct {
	Stamped, Restored, Failed uint64 // segments: TSval written, TSecr put back, not changed because the kernel refused
}

// PublishedBits are the bits of a timestamp that stay as they are, as published: with them a client takes what is less than 65.5 s later.
const PublishedBits = 16

// AttachPublished puts the programs onto the device of a server in the present namespace, for its TCP port. Bits is PublishedBits, or less, at least 8, for
// what cannot wait so long.
func AttachPublished(ifindex int, port uint16, bits uint8) (*Published, error) {
	if bits < 8 || bits > PublishedBits {
		return nil, fmt.Errorf("bits: %d: must be 8 to %d", bits, PublishedBits)
	}
	p := &Published{}
	if err := loadPublishedObjects(&p.objects, nil); err != nil {
		return nil, fmt.Errorf("load the published encoding: %w", err)
	}
	if err := p.objects.Config.Set(publishedPublishedConfig{PortBe: port<<8 | port>>8, Bits: uint16(bits)}); err != nil {
		return nil, errors.Join(fmt.Errorf("configure the published encoding: %w", err), p.Close())
	}
	for _, hook := range []struct {
		program *ebpf.Program
		at      ebpf.AttachType
	}{{p.objects.PublishedOut, ebpf.AttachTCXEgress}, {p.objects.PublishedIn, ebpf.AttachTCXIngress}} {
		l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: hook.program, Attach: hook.at})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attach %s to interface %d: %w", hook.at, ifindex, err), p.Close())
		}
		p.links = append(p.links, l)
	}
	return p, nil
}

// Counts reads what it did so far.
func (p *Published) Counts() (PublishedCounts, error) {
	var s publishedPublishedState
	if err := p.objects.State.Get(&s); err != nil {
		return PublishedCounts{}, fmt.Errorf("read the counts of the published encoding: %w", err)
	}
	return PublishedCounts{Stamped: s.Stamped, Restored: s.Restored, Failed: s.Failed}, nil
}

// Close takes the programs off the device.
func (p *Published) Close() error {
	var errs []error
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, p.objects.Close())...)
}
