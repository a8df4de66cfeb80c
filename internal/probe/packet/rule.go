package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"unique"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
)

// stage is the state of a target's probe.
type stage uint8

const (
	idle   stage = iota
	parked       // requested, the way is unknown
	queued       // requested, no SYN sent yet
	flying       // SYN sent
)

// rule is a target with its probe. The zero value is none. Values that many targets share are
// stored elsewhere, and the SYN of a target without a tunnel is built when it is sent, because
// there are many targets.
type rule struct {
	// began is when the first SYN of the probe was sent, or before that when it was requested, in
	// nanoseconds.
	began   int64
	last    int64 // when the last SYN was sent
	round   round
	gen     uint32 // of its probe: entries with another one are stale
	terms   uint32 // index in checks
	place   uint32 // index in places
	port    uint16 // the server's
	request uint16 // length of the request
	stage   stage
	sent    uint8 // number of SYNs sent
	known   bool
	placed  bool // it has a record, and can be probed
	faulty  bool // it cannot be probed, for the reason in core.faults
	tunnel  bool // core.tunnels has it
	heard   bool // the server has answered by packets on this way
	doubted bool // it did not answer the last time, which was Unsure
}

// destination returns the address to which the frames of a target have to be routed.
func destination(t probe.Target) netip.Addr {
	if tunnelled(t) {
		return t.Tunnel.Value().Outer
	}
	return t.Address.Addr()
}

func tunnelled(t probe.Target) bool { return t.Tunnel != unique.Handle[probe.Tunnel]{} }

// requestOf returns a target's request, empty for TCP. It does not depend on the tunnel, because
// the answer must not depend on the path.
func requestOf(t probe.Target) ([]byte, error) {
	c := t.Check.Value()
	return request(&c, t.Address)
}

// check returns an error for targets that cannot be probed by packets at all.
func check(t probe.Target) error {
	if t.Check == (unique.Handle[lb.Check]{}) {
		return errors.New("check: must be one")
	}
	switch c := t.Check.Value(); {
	case c.Timeout <= 0:
		return fmt.Errorf("timeout: %v: must be above 0", c.Timeout)
	case t.Address.Addr().Zone() != "":
		return errors.New("address: with a zone: not by packets")
	case !t.Address.IsValid() || t.Address.Port() == 0 && !tunnelled(t):
		return fmt.Errorf("address: %v: must be an address with a port", t.Address)
	case c.Through == lb.ThroughTunnel && !tunnelled(t):
		return errors.New("through: no tunnel is given")
	}
	if tunnelled(t) {
		switch u := t.Tunnel.Value(); {
		case u.VNI != 0:
			return fmt.Errorf("vni: %d: not supported by this version", u.VNI)
		case !u.VIP.IsValid() || u.VIP.Port() == 0:
			return fmt.Errorf("vip: %v: must be an address with a port", u.VIP)
		case !u.Outer.IsValid():
			return errors.New("outer: must be an address")
		case u.Outer.Zone() != "":
			return errors.New("outer: with a zone: not by packets")
		case u.Encap != lb.EncapIPIP && u.Encap != lb.EncapGUE && u.Encap != "":
			return fmt.Errorf("encap: %q: not supported by this version", u.Encap)
		}
	}
	_, err := requestOf(t)
	return err
}

// surroundings are the inputs of a target's record in addition to the target itself.
type surroundings struct {
	way     netdev.NextHop
	sources []netip.Prefix
	devices []int
	local   func(is4 bool) netip.Addr
}

// Reasons why a target has no record.
var (
	// errUnresolved: the kernel is still resolving the next hop's Ethernet address.
	errUnresolved = errors.New("the next hop does not answer")
	// errNoRoute: the kernel has no route.
	errNoRoute = errors.New("no route")
)

// noTunnel is the error that the plan has no outer addresses for a tunnel to the host.
type noTunnel struct{ error }

// record returns the record of a target and, with a tunnel, the template of its SYN.
func record(t probe.Target, s surroundings) (dataplane.ProbeRule, []byte, error) {
	hop := dataplane.NextHop{MAC: s.way.MAC, Ifindex: s.way.Ifindex, Tag: s.way.Tag}
	r := dataplane.ProbeRule{Peer: t.Address, Local: s.way.Source, Hop: hop}
	switch {
	case s.way.Ifindex == 0:
		return r, nil, fmt.Errorf("%w to %s", errNoRoute, destination(t))
	case !s.way.Resolved:
		return r, nil, errUnresolved
	case s.devices != nil && !slices.Contains(s.devices, s.way.Ifindex):
		return r, nil, fmt.Errorf("the way to %s does not lead out of an interface of the mux", destination(t))
	}
	request, err := requestOf(t)
	if err != nil {
		return r, nil, err
	}
	r.Request = request
	if tunnelled(t) {
		u := t.Tunnel.Value()
		r.Peer = u.VIP
		if is4 := u.VIP.Addr().Is4(); r.Local.Is4() != is4 || !r.Local.IsValid() {
			r.Local = netip.Addr{}
			if s.local != nil {
				r.Local = s.local(is4)
			}
		}
		if err := wrap(&r, u, s.sources); err != nil {
			return r, nil, noTunnel{err}
		}
	}
	if !r.Local.IsValid() || r.Local.Is4() != r.Peer.Addr().Is4() {
		return r, nil, fmt.Errorf("no address of this machine for servers like %s", r.Peer.Addr())
	}
	if !tunnelled(t) {
		return r, nil, nil
	}
	return r, template(linkOf(s.way), r.Outer, r.Local, r.Peer), nil
}

// wrap adds the outer headers of a tunnel to a record. Their hash is computed from the tunnel.
func wrap(r *dataplane.ProbeRule, u probe.Tunnel, sources []netip.Prefix) error {
	h := fnv.New64a()
	vip, outer := u.VIP.Addr().As16(), u.Outer.As16()
	h.Write(vip[:])
	h.Write(outer[:])
	h.Write(binary.BigEndian.AppendUint32(nil, uint32(u.VIP.Port())<<16|uint32(u.Member)))
	tunnel := dataplane.Tunnel{Outer: u.Outer, Member: u.Member, Sources: sources, Hash: h.Sum64()}
	if u.Encap == lb.EncapGUE {
		tunnel.Encap = dataplane.EncapGUE
	}
	is4 := u.VIP.Addr().Is4()
	var err error
	r.Outer, err = tunnel.Header(is4, bareLength(is4))
	return err
}
