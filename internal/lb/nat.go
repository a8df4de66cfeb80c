package lb

import (
	"fmt"
	"net/netip"

	"github.com/goccy/go-yaml/ast"
)

// NAT holds the addresses from which a mux sends to servers of endpoints with path nat. No other
// machine has them. The mux advertises them, and servers reply to them.
type NAT struct {
	// Addresses are at most MaxNATAddresses of each family.
	Addresses []netip.Addr
	// Low and High are the first and the last source port of connections on each address.
	Low, High uint16
}

// Bounds and defaults of NAT.
const (
	MaxNATAddresses = 16
	DefaultNATLow   = 1024
	DefaultNATHigh  = 65535

	allowedNATPorts = `must be a range, such as "1024-65535"`
)

// Has reports whether there is an address of the family; nil has none.
func (n *NAT) Has(v4 bool) bool { return n != nil && containsFamily(n.Addresses, v4) }

func containsFamily(of []netip.Addr, v4 bool) bool {
	for _, a := range of {
		if a.Is4() == v4 {
			return true
		}
	}
	return false
}

// Translated reports whether muxes rewrite the endpoint's packets both ways, without an agent on
// the servers (path nat).
func (e *Endpoint) Translated() bool { return e.Path == PathNAT }

// Translated reports whether an endpoint of the service has path nat.
func (s *Service) Translated() bool {
	for i := range s.Endpoints {
		if s.Endpoints[i].Translated() {
			return true
		}
	}
	return false
}

// ParseNATPorts reads the source ports of connections: "1024-65535". allowed is the fault of s.
func ParseNATPorts(s string) (low, high uint16, allowed string) {
	low, high, allowed = ParsePorts(s)
	if allowed != "" || high == 0 || low == 0 {
		return 0, 0, allowedNATPorts
	}
	return low, high, ""
}

func (n *NAT) setDefaults() {
	if n.Low == 0 && n.High == 0 {
		n.Low, n.High = DefaultNATLow, DefaultNATHigh
	}
}

func (d *decoder) nat(path string, n ast.Node) *NAT {
	out := &NAT{}
	d.mapping(path, n,
		field{"addresses", func(p string, n ast.Node) {
			d.listOrOne(p, n, func(p string, n ast.Node) { out.Addresses = append(out.Addresses, d.addr(p, n)) })
		}},
		field{"ports", func(p string, n ast.Node) {
			s, allowed := d.given(p, n, allowedNATPorts), ""
			if s == "" {
				return
			}
			out.Low, out.High, allowed = ParseNATPorts(s)
			d.check(p, s, allowed)
		}},
	)
	out.setDefaults()
	return out
}

// flow returns the addresses on one line.
func (n *NAT) flow() string {
	return fmt.Sprintf("{addresses: %s, ports: \"%s\"}", flowList(n.Addresses), PortsText(n.Low, n.High))
}

// nat checks the addresses from which a mux sends to servers.
func (f *faults) nat(n *Node) {
	if n.NAT == nil {
		return
	}
	if n.Role == RoleHost {
		f.add("nat", "", "must not be given for a host: only muxes rewrite packets of path nat")
		return
	}
	if len(n.NAT.Addresses) == 0 {
		f.add("nat.addresses", "", "is missing, must have at least one address")
	}
	for i, a := range n.NAT.Addresses {
		at := fmt.Sprintf("nat.addresses[%d]", i)
		f.check(at, addrText(a), unicast(a))
		for _, own := range n.Addresses {
			if own == a && !f.has(at) {
				f.add(at, a.String(), "must not be an address of the node: nobody but path nat may use it")
			}
		}
	}
	unique(f, "nat.addresses", n.NAT.Addresses)
	for _, v4 := range [2]bool{true, false} {
		count := 0
		for i, a := range n.NAT.Addresses {
			if a.Is4() != v4 {
				continue
			}
			if count++; count == MaxNATAddresses+1 {
				f.add(fmt.Sprintf("nat.addresses[%d]", i), addrText(a), fmt.Sprintf("must be at most %d of a family", MaxNATAddresses))
			}
		}
	}
	if n.NAT.Low == 0 || n.NAT.Low >= n.NAT.High {
		f.add("nat.ports", fmt.Sprintf("%d-%d", n.NAT.Low, n.NAT.High), allowedNATPorts)
	}
}

// translated checks for options that conflict with path nat: there is no tunnel and no host agent,
// and the mux tracks every connection.
func (f *faults) translated(path string, e *Endpoint) {
	if !e.Translated() || f.has(path+".path") {
		return
	}
	add := func(field, value, allowed string) {
		if !f.has(path + field) {
			f.add(path+field, value, allowed)
		}
	}
	if e.Protocol == AnyProtocol {
		add(".protocol", e.ProtocolName(), "must be tcp or udp with path nat")
	}
	if e.QUIC != nil && e.Cookies() {
		add(".affinity", e.Affinity, "must be flow with protocol quic and path nat: the mux remembers connections by addresses and ports")
	}
	if e.Affinity == AffinityHash {
		add(".affinity", e.Affinity, "must be flow or cookie with path nat: the mux remembers every connection")
	}
	if e.OnePacket {
		add(".onePacket", "true", "must be false with path nat: answers find their client by the connection that the mux remembers")
	}
	if e.Rewrite == RewriteNone {
		add(".rewrite", string(e.Rewrite), "must be host or left out with path nat: servers have no VIP")
	}
	if e.Track {
		add(".track", "true", NotSupported+" with path nat, must be false")
	}
	if e.Encap != "" {
		add(".encap", e.Encap, "must be left out with path nat: packets are not tunnelled")
	}
	if e.Fragments == Fragments3Tuple {
		add(".fragments", e.Fragments, "must be drop with path nat: ports are rewritten, and fragments have none")
	}
	if e.RepairWindow != nil {
		add(".repairWindow", durationText(*e.RepairWindow), "must be left out with path nat: no host repairs connections")
	}
	if e.HostIdle != (HostIdle{}) {
		add(".hostIdle", e.HostIdle.String(), "must be left out with path nat: no host remembers flows")
	}
	if e.Load != (Load{}) {
		add(".load", e.Load.String(), "must be left out with path nat: no host asks servers")
	}
	if e.Loaded() {
		add(".scheduler", e.Scheduler, "must be maglev, random, round-robin or weighted-round-robin with path nat: no host tells loads of servers")
	}
	if e.Health.ByHost() {
		add(".health.from", e.Health.From, "must be mux with path nat: servers have no host agent")
	}
	for i := range e.Health.Checks {
		if c := &e.Health.Checks[i]; c.Through == ThroughTunnel {
			at := e.checkPath(path+".health", i) + ".through"
			if !f.has(at) {
				f.add(at, c.Through, "must be direct with path nat: there is no tunnel")
			}
		}
	}
}
