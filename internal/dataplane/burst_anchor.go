package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/shuntlb/shunt/internal/netdev"
)

// anchor is a device that a program is attached to only to be in the kernel's dispatcher of XDP programs (bpf_dispatcher_xdp).
// BPF_PROG_TEST_RUN puts a program there that is not, and takes it out afterwards: each writes the dispatcher anew and waits for all
// CPUs to leave the old one, some 0.25 ms of CPU and 20 ms of waiting a call; of one that is there it only counts the users, and a
// call takes 0.02 ms. The device is an end of a veth in a namespace without a name, which ends with the process. It is down: what IPv6 has
// to say on a device that is up would come to the program as if it were a frame of a burst.
type anchor struct {
	namespace *netdev.Namespace
	at        link.Link
}

// Names of both ends of an anchor.
const anchorDevice, anchorPeer = "anchor", "peer"

// anchorMTU is one that a veth with a program may have.
const anchorMTU = 1500

// dropAnchor attaches a program, until the anchor is raised.
func dropAnchor(program *ebpf.Program) (*anchor, error) {
	n, err := netdev.NewNamespace()
	if err != nil {
		return nil, err
	}
	a := &anchor{namespace: n}
	if err := netdev.AddVeth(netdev.VethEnd{Namespace: n, Name: anchorDevice}, netdev.VethEnd{Namespace: n, Name: anchorPeer}, anchorMTU); err != nil {
		return nil, errors.Join(err, a.raise())
	}
	for _, end := range []string{anchorDevice, anchorPeer} {
		if err := n.SetUp(end, false); err != nil {
			return nil, errors.Join(err, a.raise())
		}
	}
	err = n.In(func() error {
		device, err := netdev.FindInterface(anchorDevice)
		if err != nil {
			return err
		}
		a.at, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: device.Index, Flags: link.XDPDriverMode})
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach the program to a device of its own: %w", err), a.raise())
	}
	return a, nil
}

// raise takes the device away.
func (a *anchor) raise() (err error) {
	if a.at != nil {
		err = a.at.Close()
	}
	a.namespace.Close()
	return err
}
