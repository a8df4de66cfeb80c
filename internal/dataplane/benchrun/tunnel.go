package benchrun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Tunnel makes the packets that leave a client's device for one VIP ones of a mux: each is put into an IPv4 tunnel to the target of the moment.
type Tunnel struct {
	objects tunnelObjects
	link    link.Link
}

// OpenTunnel puts the program onto a device, in whose namespace it is called. Until a target is set, packets for the VIP are lost.
func OpenTunnel(ifindex int, vip netip.Addr) (*Tunnel, error) {
	t := &Tunnel{}
	if err := load(loadTunnel, &t.objects, false); err != nil {
		return nil, fmt.Errorf("load tunnel: %w", err)
	}
	err := errors.Join(t.objects.Vip4.Set(stored4(vip)), t.objects.Source4.Set(stored4(hostSource)))
	if err == nil {
		t.link, err = link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: t.objects.Tunnel, Attach: ebpf.AttachTCXEgress})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach tunnel: %w", err), t.objects.Close())
	}
	return t, nil
}

// To sends the packets from now on to an outer destination, by a device of the client.
func (t *Tunnel) To(outer netip.Addr, ifindex int) error {
	if err := t.objects.Target.Set(uint64(ifindex)<<32 | uint64(stored4(outer))); err != nil {
		return fmt.Errorf("aim tunnel at %s: %w", outer, err)
	}
	return nil
}

// Close takes the program off the device.
func (t *Tunnel) Close() error { return errors.Join(t.link.Close(), t.objects.Close()) }

// TunnelSources is where tunnels come from.
func TunnelSources() []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(hostSource, 16).Masked()} }

// stored4 is an IPv4 address as it lies in a header.
func stored4(a netip.Addr) uint32 {
	b := a.As4()
	return binary.LittleEndian.Uint32(b[:])
}
