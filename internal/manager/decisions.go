package manager

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// decisions returns the decisions about members that are not plainly in service or have no host
// agent, ordered by endpoint and member. connected reports whether a node has been connected since
// this manager started.
func (v *view) decisions(connected func(node string) bool, own owned) []*apiv1.MemberDecision {
	v.mu.RLock()
	defer v.mu.RUnlock()
	absent := v.absentLocked(connected)
	var keys []lb.EndpointKey
	without := map[lb.EndpointKey]unserved{}
	for key, st := range v.state.Endpoints {
		of := v.owners[key]
		if of.ep == nil || !own.has(of.svc.Name) {
			continue
		}
		if none := v.unservedLocked(key, of.ep, absent); none != nil {
			without[key] = none
		}
		if without[key] != nil || slices.ContainsFunc(st.Members, plan.MemberState.Special) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, plan.CompareKeys)
	var out []*apiv1.MemberDecision
	for _, key := range keys {
		st, own := v.state.Endpoints[key], v.owners[key]
		if own.ep == nil {
			continue
		}
		wanted := map[lb.BackendKey]uint16{}
		for _, w := range plan.WantedMembers(own.ep, key.VIP) {
			wanted[w.Backend] = w.Weight
		}
		shares := st.Shares(wanted)
		for i, m := range st.Members {
			if why := without[key][m.Backend]; why != "" || m.Special() {
				d := decision(key, own, m, shares[i])
				d.NoAgent = why
				out = append(out, d)
			}
		}
	}
	return out
}

func decision(key lb.EndpointKey, own owner, m plan.MemberState, share uint32) *apiv1.MemberDecision {
	d := &apiv1.MemberDecision{
		Service: own.svc.Name, Vip: key.VIP.String(), Protocol: key.Protocol.String(), Port: uint32(key.Port), PortEnd: uint32(key.PortEnd),
		Dip: m.Backend.DIP.String(), DipPort: uint32(m.Backend.Port), Member: uint32(m.ID), Backup: m.Backup, Down: m.Down, Share: share,
	}
	d.Warming, d.Warm = span(m.Warming, own.ep.SlowStart)
	d.Draining, d.Drained = span(m.Draining, own.ep.DrainTimeout)
	return d
}

// span returns a start time and the end after d. The end is nil if d is 0. Both are nil if since is
// zero.
func span(since time.Time, d time.Duration) (from, to *timestamppb.Timestamp) {
	if since.IsZero() {
		return nil, nil
	}
	if d > 0 {
		to = timestamppb.New(since.Add(d))
	}
	return timestamppb.New(since), to
}
