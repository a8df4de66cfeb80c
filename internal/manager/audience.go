package manager

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
)

// audience is the sessions that subscribe to a view, indexed by the changes that concern them. A
// change costs time in proportion to the nodes that it concerns, however many others there are.
type audience struct {
	byNode map[string]map[*session]bool
	muxes  map[*session]bool
}

func newAudience() audience {
	return audience{byNode: map[string]map[*session]bool{}, muxes: map[*session]bool{}}
}

func (a *audience) add(s *session) {
	if a.byNode[s.name] == nil {
		a.byNode[s.name] = map[*session]bool{}
	}
	a.byNode[s.name][s] = true
	if s.role == lb.RoleMux {
		a.muxes[s] = true
	}
}

func (a *audience) remove(s *session) {
	delete(a.muxes, s)
	if delete(a.byNode[s.name], s); len(a.byNode[s.name]) == 0 {
		delete(a.byNode, s.name)
	}
}

// join subscribes a session to changes.
func (v *view) join(s *session) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.audience.add(s)
}

// leave ends the subscription that join began.
func (v *view) leave(s *session) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.audience.remove(s)
}

// tellLocked notifies the sessions that a change concerns.
func (v *view) tellLocked(c change) {
	revision, hosts := v.planRev, int64(0)
	if len(c.bindings) > 0 {
		v.hostRev, hosts = revision, revision
	}
	for _, changed := range c.bindings {
		if !repairKeys(changed.keys) {
			v.bindingRev = revision
			break
		}
	}
	if c.surroundings || c.epoch {
		for _, sessions := range v.audience.byNode {
			for s := range sessions {
				s.tell(nil, c.surroundings, revision, hosts)
			}
		}
	}
	if c.snatConf {
		for _, sessions := range v.audience.byNode {
			for s := range sessions {
				s.signal()
			}
		}
	} else if c.snatLeases {
		for s := range v.audience.muxes {
			s.signal()
		}
	}
	for _, r := range c.objects {
		if r.kind == lb.KindNode {
			for s := range v.audience.byNode[r.name] {
				s.tell(nil, true, revision, hosts)
			}
		}
	}
	if len(c.items) > 0 {
		for s := range v.audience.muxes {
			s.tell(c.items, false, revision, hosts)
		}
	}
	for name, keys := range c.muxItems {
		for s := range v.audience.byNode[name] {
			if s.role == lb.RoleMux {
				s.tell(keys, false, revision, hosts)
			}
		}
	}
	for host, changed := range c.bindings {
		for _, name := range v.wanted.NodesAt(host) {
			for s := range v.audience.byNode[name] {
				if s.role == lb.RoleHost {
					s.owe(changed.endpoints, revision)
					s.tell(changed.keys, false, revision, hosts)
				}
			}
		}
	}
}

// bindings are the possible changes of a host: keys of its items, and keys of the endpoints that
// the items belong to.
type bindings struct{ keys, endpoints []string }

// bindingOf records that a host's binding of an endpoint may have changed.
func (c *change) bindingOf(host netip.Addr, endpoint, key string) {
	if c.bindings == nil {
		c.bindings = map[netip.Addr]*bindings{}
	}
	of := c.bindings[host]
	if of == nil {
		of = &bindings{}
		c.bindings[host] = of
	}
	of.keys = append(of.keys, key)
	if n := len(of.endpoints); n == 0 || of.endpoints[n-1] != endpoint {
		of.endpoints = append(of.endpoints, endpoint)
	}
}
