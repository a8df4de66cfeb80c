package plan

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// TunnelPhase is how far a change of a Network's tunnelSources is. At every moment hosts accept the sources that any mux may use.
type TunnelPhase string

const (
	// TunnelsSpread: hosts accept the new sources as well; muxes use the ones of before.
	TunnelsSpread TunnelPhase = "spread"
	// TunnelsSwitch: muxes use the new ones; hosts accept both.
	TunnelsSwitch TunnelPhase = "switch"
	// TunnelsRest: all muxes use the new ones; packets with the ones of before may still be on their way.
	TunnelsRest TunnelPhase = "rest"
)

// TunnelsRestTime is how long TunnelsRest lasts: longer than a packet is on its way from a mux to a host.
const TunnelsRestTime = 5 * time.Second

// TunnelChange is a change of a Network's tunnelSources that is under way.
type TunnelChange struct {
	// Muxes are the sources that muxes use. Former are others that muxes with older plans may use.
	Muxes, Former []netip.Prefix
	Phase         TunnelPhase
	// Since is when the phase began.
	Since time.Time
}

// ChangeTunnels begins a change from the sources was; before is one that is under way, or nil.
func ChangeTunnels(before *TunnelChange, was []netip.Prefix, now time.Time) TunnelChange {
	if before == nil {
		return TunnelChange{Muxes: was, Phase: TunnelsSpread, Since: now}
	}
	return TunnelChange{Muxes: before.Muxes, Former: before.Former, Phase: TunnelsSpread, Since: now}
}

// NextTunnels returns the changes that are under way once the Networks was become is, from those under way before. Muxes of a new Network use the
// sources of another one until every host accepts theirs. Hosts accept the sources of a deleted Network until every mux has left them. The first
// Networks go by no phases, because no host serves anything yet.
func NextTunnels(was lb.Networks, under map[string]TunnelChange, is lb.Networks, now time.Time) map[string]TunnelChange {
	next := make(map[string]TunnelChange, len(under))
	maps.Copy(next, under)
	var gone []netip.Prefix
	for _, n := range was {
		if network(is, n.Name) != nil {
			continue
		}
		if c, changes := under[n.Name]; changes {
			gone = union(gone, c.Accepted(nil))
		}
		gone = union(gone, n.TunnelSources)
		delete(next, n.Name)
	}
	for _, n := range is {
		before := network(was, n.Name)
		switch {
		case before == nil && len(was) > 0:
			next[n.Name] = TunnelChange{Muxes: usedBy(was[0], under), Phase: TunnelsSpread, Since: now}
		case before != nil && !slices.Equal(before.TunnelSources, n.TunnelSources):
			var c *TunnelChange
			if u, changes := under[n.Name]; changes {
				c = &u
			}
			next[n.Name] = ChangeTunnels(c, before.TunnelSources, now)
		}
	}
	if len(gone) > 0 && len(is) > 0 {
		// Any Network can hold them: hosts accept those of all.
		c, changes := next[is[0].Name]
		switch {
		case !changes:
			c = TunnelChange{Muxes: is[0].TunnelSources, Phase: TunnelsSwitch}
		case c.Phase == TunnelsRest:
			c.Phase = TunnelsSwitch
		}
		c.Former, c.Since = union(c.Former, gone), now
		next[is[0].Name] = c
	}
	return next
}

// network returns the Network of a name; nil: there is none.
func network(of lb.Networks, name string) *lb.Network {
	if i := slices.IndexFunc(of, func(n *lb.Network) bool { return n.Name == name }); i >= 0 {
		return of[i]
	}
	return nil
}

// usedBy are the sources that muxes of a Network use.
func usedBy(n *lb.Network, under map[string]TunnelChange) []netip.Prefix {
	if c, changes := under[n.Name]; changes {
		return c.Muxes
	}
	return n.TunnelSources
}

// Step returns the next phase, if the present one is over, and whether the change ends with it. Acked tells whether all nodes that the phase is
// about have applied it: hosts of TunnelsSpread, muxes of TunnelsSwitch. Wanted are the Network's tunnelSources.
func (c *TunnelChange) Step(now time.Time, acked bool, wanted []netip.Prefix) (next TunnelChange, over, ends bool) {
	next = *c
	next.Since = now
	switch {
	case c.Phase == TunnelsSpread && acked:
		next.Former, next.Muxes, next.Phase = union(c.Former, c.Muxes), wanted, TunnelsSwitch
	case c.Phase == TunnelsSwitch && acked:
		next.Phase = TunnelsRest
	case c.Phase == TunnelsRest && now.Sub(c.Since) >= TunnelsRestTime:
		return next, true, true
	default:
		return *c, false, false
	}
	return next, true, false
}

// Role is that of the nodes which the phase waits for; empty when it waits for time.
func (c *TunnelChange) Role() lb.Role {
	switch c.Phase {
	case TunnelsSpread:
		return lb.RoleHost
	case TunnelsSwitch:
		return lb.RoleMux
	}
	return ""
}

// Accepted are the sources that hosts accept while a Network with the wanted ones changes: those first.
func (c *TunnelChange) Accepted(wanted []netip.Prefix) []netip.Prefix {
	return union(wanted, union(c.Muxes, c.Former))
}

// union is a and what b has beyond it, in order.
func union(a, b []netip.Prefix) []netip.Prefix {
	out := slices.Clone(a)
	for _, p := range b {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// networksFor are the Networks as a role has them.
func (s *State) networksFor(role lb.Role) lb.Networks {
	return TunnelledNetworks(s.AllNetworks(), s.Tunnels, role)
}

// TunnelledNetworks returns the Networks as a role has them during changes: with the tunnel sources that hosts accept, or that muxes use.
func TunnelledNetworks(networks lb.Networks, changes map[string]TunnelChange, role lb.Role) lb.Networks {
	if len(changes) == 0 {
		return networks
	}
	networks = slices.Clone(networks)
	for i, n := range networks {
		c, changes := changes[n.Name]
		if !changes {
			continue
		}
		n := *n
		if role == lb.RoleHost {
			n.TunnelSources = c.Accepted(n.TunnelSources)
		} else {
			n.TunnelSources = c.Muxes
		}
		networks[i] = &n
	}
	return networks
}
