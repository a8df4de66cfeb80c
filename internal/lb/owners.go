package lb

import (
	"fmt"
	"net/netip"
)

// OwnsVIP reports whether the endpoint's servers own the VIP, and their hosts answer the handshakes
// (cookie.form co).
func (e *Endpoint) OwnsVIP() bool { return e.StampsTCP() && e.Cookie.Form == CookieCO }

// seat is a resource that a machine has once per endpoint whose servers own the VIP: the server
// that answers for VIPs of a family.
type seat struct {
	machine string
	v4      bool
}

// crowded calls f for each backend on whose machine an earlier one already answers for VIPs of the
// same family. machine returns the machine of a host address; empty: unknown.
func (e *Endpoint) crowded(machine func(netip.Addr) string, f func(at, before int)) {
	taken := map[seat]int{}
	for i := range e.Backends {
		b := &e.Backends[i]
		name := machine(b.Host)
		if name == "" {
			continue
		}
		before := -1
		for _, dip := range b.DIPs {
			s := seat{name, dip.Is4()}
			first, there := taken[s]
			switch {
			case !there:
				taken[s] = i
			case before < 0:
				before = first
			}
		}
		if before >= 0 && before != i {
			f(i, before)
		}
	}
}

// owners refuses two backends of an endpoint at one host address if servers own the VIP, because
// the host answers for one.
func (f *faults) owners(path string, e *Endpoint) {
	if !e.OwnsVIP() {
		return
	}
	e.crowded(addrText, func(at, before int) {
		host := e.Backends[at].Host
		f.add(fmt.Sprintf("%s.backends[%d].host", path, at), host.String(),
			fmt.Sprintf("must differ from that of backends[%d] with cookie.form co: a machine answers for one server of an endpoint", before))
	})
}

// owners refuses the same for two addresses of one node.
func (s rules) owners(f *faults, o *Service) {
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if !e.OwnsVIP() {
			continue
		}
		e.crowded(s.addressOwner, func(at, before int) {
			host := e.Backends[at].Host
			if host == e.Backends[before].Host {
				return // reported when the object is checked alone
			}
			f.add(fmt.Sprintf("endpoints[%d].backends[%d].host", i, at), host.String(),
				fmt.Sprintf("must be of another node than that of backends[%d] with cookie.form co: %s has both addresses, and a machine answers for one server of an endpoint",
					before, Ref(KindNode, s.addressOwner(host))))
		})
	}
}

// owningOf returns the host addresses of the object's servers that own VIPs.
func owningOf(o Object) (hosts []netip.Addr) {
	svc, ok := o.(*Service)
	if !ok || svc == nil {
		return nil
	}
	for i := range svc.Endpoints {
		if e := &svc.Endpoints[i]; e.OwnsVIP() {
			for j := range e.Backends {
				hosts = append(hosts, e.Backends[j].Host)
			}
		}
	}
	return hosts
}

// reowned adds the services whose servers own VIPs at an address that an edited Node has or had.
func (a *after) reowned(i id, o Object, out map[id]bool) {
	if i.kind != KindNode {
		return
	}
	for _, addrs := range [2][]netip.Addr{claimed(a.objects[i]), claimed(o)} {
		for _, addr := range addrs {
			for _, name := range a.owning[addr] {
				out[id{KindService, name}] = true
			}
		}
	}
}
