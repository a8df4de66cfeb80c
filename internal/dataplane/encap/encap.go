// Package encap stands in for a mux in tests of the host: it puts packets for known addresses into tunnels as they
// leave an interface.
package encap

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -go-package encap -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Wpadded -Werror -I../../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel encap ../../../bpf/unit/encap.bpf.c

// Tunnel is where packets for one address go.
type Tunnel struct {
	Source, Destination netip.Addr
	// Member is an id that GUE carries; 65535 is IP in IP.
	Member uint16
}

// Encap is the program, attached.
type Encap struct {
	objects encapObjects
	link    link.Link
}

// Attach attaches the program to the egress of an interface of the present namespace.
func Attach(ifindex int, tunnels map[netip.Addr]Tunnel) (*Encap, error) {
	e := &Encap{}
	if err := loadEncapObjects(&e.objects, nil); err != nil {
		return nil, fmt.Errorf("load encap: %w", err)
	}
	for addr, t := range tunnels {
		value := encapEncapTunnel{Src: t.Source.As16(), Dst: t.Destination.As16(), Member: uint32(t.Member)}
		if t.Destination.Is6() {
			value.Is6 = 1
		}
		if err := e.objects.EncapTunnels.Put(addr.As16(), value); err != nil {
			return nil, errors.Join(fmt.Errorf("write tunnel of %s: %w", addr, err), e.objects.Close())
		}
	}
	var err error
	e.link, err = link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: e.objects.Encap, Attach: ebpf.AttachTCXEgress})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach encap: %w", err), e.objects.Close())
	}
	return e, nil
}

// Close detaches the program.
func (e *Encap) Close() error { return errors.Join(e.link.Close(), e.objects.Close()) }
