package dataplane

import (
	"errors"
	"fmt"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
)

// MuxChange is the wanted state of some VIPs.
type MuxChange struct {
	// VIPs are those that the change is about, each once, also those without limits; one that has no endpoints and is not Outbound goes.
	VIPs []MuxVIP
	// Endpoints are all of these VIPs, also those that stay as they are; others of the VIPs go.
	Endpoints []MuxEndpoint
}

// errNoState refuses a change of nothing.
var errNoState = errors.New("change: no whole state was applied yet")

// check refuses changes that could not be right, and returns the keys of the endpoints and their VIPs.
func (s MuxChange) check() (wanted map[lb.EndpointKey]bool, err error) {
	if err := checkState(MuxState{Endpoints: s.Endpoints, VIPs: s.VIPs}); err != nil {
		return nil, err
	}
	if wanted, err = wantedKeys(s.Endpoints, s.VIPs); err != nil {
		return nil, err
	}
	about := s.about()
	for i, e := range s.Endpoints {
		if (i == 0 || vipKey(e.Key) != vipKey(s.Endpoints[i-1].Key)) && !about[vipKey(e.Key)] {
			return nil, fmt.Errorf("endpoint %v: the change is not about its VIP", e.Key)
		}
	}
	return wanted, nil
}

// about are the keys of the VIPs that the change is about.
func (s MuxChange) about() map[lb.EndpointKey]bool {
	out := make(map[lb.EndpointKey]bool, len(s.VIPs))
	for _, v := range s.VIPs {
		out[v.key()] = true
	}
	return out
}

// Changed is the state after a change: the endpoints of its VIPs come behind the others. It keeps the rings that the change
// keeps.
func (s MuxState) Changed(by MuxChange) MuxState {
	about := by.about()
	s.Endpoints = slices.DeleteFunc(slices.Clone(s.Endpoints), func(e MuxEndpoint) bool { return about[vipKey(e.Key)] })
	s.VIPs = slices.DeleteFunc(slices.Clone(s.VIPs), func(v MuxVIP) bool { return about[v.key()] })
	s.Endpoints = append(s.Endpoints, by.Endpoints...)
	served := map[lb.EndpointKey]bool{}
	for _, e := range by.Endpoints {
		served[vipKey(e.Key)] = true
	}
	for _, v := range by.VIPs {
		if served[v.key()] || v.Outbound {
			s.VIPs = append(s.VIPs, v)
		}
	}
	return s
}

// stageChange writes the wanted state of some VIPs beside the present one, as stage does of all.
func (t *muxTables) stageChange(s MuxChange, crowded bool) (*change, error) {
	c := &change{t: t, crowded: crowded, staged: map[lb.EndpointKey]bool{}, moved: map[*muxEntry]bool{}}
	if err := c.stageChange(s); err != nil {
		c.undo()
		return nil, err
	}
	return c, nil
}

func (c *change) stageChange(s MuxChange) error {
	if !c.t.whole {
		return errNoState
	}
	wanted, err := s.check()
	if err != nil {
		return err
	}
	if err := checkSources(s.Endpoints, c.t.sources); err != nil {
		return err
	}
	scope := func(yield func(lb.EndpointKey) bool) {
		for _, v := range s.VIPs {
			if !yield(v.key()) {
				return
			}
		}
	}
	if err := c.stageGuards(s.VIPs, wanted, scope); err != nil {
		return err
	}
	if err := c.stageEndpoints(s.Endpoints, s.VIPs); err != nil {
		return err
	}
	for vip := range scope {
		c.removeUnwanted(vip, wanted)
	}
	if err := c.countQUIC(); err != nil {
		return err
	}
	c.rings = slices.Insert(c.rings, 0, func() { c.countIdle(s.Endpoints) })
	return nil
}

// removeUnwanted takes out what of a VIP and its endpoints is not wanted.
func (c *change) removeUnwanted(vip lb.EndpointKey, wanted map[lb.EndpointKey]bool) {
	e := c.t.entries[vip]
	if e == nil {
		return
	}
	for _, key := range e.of {
		if !wanted[key] {
			c.remove(key, c.t.entries[key])
		}
	}
	if !wanted[vip] {
		c.remove(vip, e)
	}
}

// listEndpoints makes the staged VIPs know their endpoints, which are all given.
func (c *change) listEndpoints(endpoints []MuxEndpoint) {
	of := make(map[lb.EndpointKey][]lb.EndpointKey, len(c.vips))
	for i := 0; i < len(endpoints); {
		vip, n := vipKey(endpoints[i].Key), 1
		for i+n < len(endpoints) && vipKey(endpoints[i+n].Key) == vip {
			n++
		}
		keys := slices.Grow(of[vip], n)
		for _, e := range endpoints[i : i+n] {
			keys = append(keys, e.Key)
		}
		of[vip] = keys
		i += n
	}
	c.rings = append(c.rings, func() {
		for _, vip := range c.vips {
			c.t.entries[vip].of = of[vip]
		}
	})
}
