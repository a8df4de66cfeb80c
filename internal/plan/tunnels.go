package plan

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// TunnelPhase is the progress of a change of a Network's tunnelSources. At every moment hosts
// accept the sources that any mux may use.
type TunnelPhase string

const (
	// TunnelsSpread: hosts accept the new sources in addition; muxes use the previous ones.
	TunnelsSpread TunnelPhase = "spread"
	// TunnelsSwitch: muxes use the new ones; hosts accept both.
	TunnelsSwitch TunnelPhase = "switch"
	// TunnelsRest: all muxes use the new ones; packets with the previous ones may still be in
	// flight.
	TunnelsRest TunnelPhase = "rest"
)

// TunnelsRestTime is how long TunnelsRest lasts. It exceeds the time that a packet takes from a mux
// to a host.
const TunnelsRestTime = 5 * time.Second

// TunnelChange is a change of a Network's tunnelSources in progress.
type TunnelChange struct {
	// Muxes are the sources that muxes use. Former are others that muxes with older plans may use.
	Muxes, Former []netip.Prefix
	Phase         TunnelPhase
	// Since is when the phase began.
	Since time.Time
}

// ChangeTunnels begins a change from the sources was; before is a change in progress, or nil.
func ChangeTunnels(before *TunnelChange, was []netip.Prefix, now time.Time) TunnelChange {
	if before == nil {
		return TunnelChange{Muxes: was, Phase: TunnelsSpread, Since: now}
	}
	return TunnelChange{Muxes: before.Muxes, Former: before.Former, Phase: TunnelsSpread, Since: now}
}

// NextTunnels returns the changes in progress after the Networks changed from was to is; under
// holds the changes in progress before. Muxes of a new Network use the sources of another Network
// until every host accepts theirs. Hosts accept the sources of a deleted Network until no mux uses
// them. The first Networks skip the phases, because no host serves anything yet.
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
		// Any Network can hold them, because hosts accept the sources of all.
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

// network returns the Network with the name; nil: there is none.
func network(of lb.Networks, name string) *lb.Network {
	if i := slices.IndexFunc(of, func(n *lb.Network) bool { return n.Name == name }); i >= 0 {
		return of[i]
	}
	return nil
}

// usedBy returns the sources that muxes of a Network use.
func usedBy(n *lb.Network, under map[string]TunnelChange) []netip.Prefix {
	if c, changes := under[n.Name]; changes {
		return c.Muxes
	}
	return n.TunnelSources
}

// Step returns the next phase if the current one is over, and whether the change ends with it.
// acked reports whether all nodes of the phase have applied it: hosts in TunnelsSpread, muxes in
// TunnelsSwitch. wanted are the Network's tunnelSources.
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

// Role returns the role of the nodes that the phase waits for; empty when it waits for time.
func (c *TunnelChange) Role() lb.Role {
	switch c.Phase {
	case TunnelsSpread:
		return lb.RoleHost
	case TunnelsSwitch:
		return lb.RoleMux
	}
	return ""
}

// Accepted returns the sources that hosts accept while a Network changes to wanted, with wanted
// first.
func (c *TunnelChange) Accepted(wanted []netip.Prefix) []netip.Prefix {
	return union(wanted, union(c.Muxes, c.Former))
}

// union returns a followed by the elements of b that are not in a.
func union(a, b []netip.Prefix) []netip.Prefix {
	out := slices.Clone(a)
	for _, p := range b {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// networksFor returns the Networks as a role uses them.
func (s *State) networksFor(role lb.Role) lb.Networks {
	return TunnelledNetworks(s.AllNetworks(), s.Tunnels, role)
}

// TunnelledNetworks returns the Networks as a role uses them during changes: with the tunnel
// sources that hosts accept, or that muxes use.
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
