package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
)

// EndpointChange is an endpoint that differs between two plans. Before is nil when it was added,
// After when it was removed.
type EndpointChange struct{ Before, After *Endpoint }

// Key returns the key of the endpoint.
func (c EndpointChange) Key() lb.EndpointKey {
	if c.After != nil {
		return c.After.Key
	}
	return c.Before.Key
}

// Back returns the change that reverts this one.
func (c EndpointChange) Back() EndpointChange {
	return EndpointChange{Before: c.After, After: c.Before}
}

// Differences returns the endpoints that differ between two plans. The result and both lists are
// ordered by key (Order). Members that share one array are not compared.
func Differences(before, after []Endpoint) (out []EndpointChange) {
	compare := func(a, b *Endpoint) int {
		if a.Key == b.Key {
			return 0
		}
		return CompareKeys(a.Key, b.Key)
	}
	differ(before, after, compare, (*Endpoint).Equal, func(b, a *Endpoint) { out = append(out, EndpointChange{b, a}) })
	return out
}

// ServiceChange is a service that differs between two plans. Before is nil when it was added, After
// when it was removed.
type ServiceChange struct{ Before, After *Service }

// ServiceDifferences returns the services that differ between two plans. Both lists are ordered by
// name without duplicates.
func ServiceDifferences(before, after []Service) (out []ServiceChange) {
	compare := func(a, b *Service) int { return cmp.Compare(a.Name, b.Name) }
	differ(before, after, compare, (*Service).Equal, func(b, a *Service) { out = append(out, ServiceChange{b, a}) })
	return out
}

// differ calls f for each difference between two ordered lists; nil marks an element that one list
// lacks.
func differ[T any](before, after []T, compare func(a, b *T) int, equal func(a, b *T) bool, f func(before, after *T)) {
	for len(before) > 0 || len(after) > 0 {
		side := 0
		switch {
		case len(after) == 0:
			side = -1
		case len(before) == 0:
			side = 1
		default:
			side = compare(&before[0], &after[0])
		}
		switch {
		case side < 0:
			f(&before[0], nil)
			before = before[1:]
		case side > 0:
			f(nil, &after[0])
			after = after[1:]
		default:
			if !equal(&before[0], &after[0]) {
				f(&before[0], &after[0])
			}
			before, after = before[1:], after[1:]
		}
	}
}

// Equal reports whether all fields are equal.
func (s *Service) Equal(o *Service) bool {
	return s.Name == o.Name && sameList(s.VIPs, o.VIPs) && s.Limits == o.Limits && sameList(s.Sources.Allow, o.Sources.Allow) &&
		sameList(s.Sources.Deny, o.Sources.Deny) && s.SourcesOf == o.SourcesOf && s.Outbound == o.Outbound &&
		s.Tenant == o.Tenant && s.Created == o.Created
}

// sameList compares lists that are never modified in place.
func sameList[T comparable](a, b []T) bool { return SameSlice(a, b) || slices.Equal(a, b) }

// Equal reports whether all fields are equal.
func (e *Endpoint) Equal(o *Endpoint) bool {
	return e.Generation == o.Generation && sameList(e.Members, o.Members) &&
		(e.Source == o.Source || e.Source != nil && o.Source != nil && *e.Source == *o.Source) &&
		e.Key == o.Key && e.Service == o.Service && e.RingCode == o.RingCode && e.KeyID == o.KeyID && e.RingTweak == o.RingTweak && e.Health.Equal(o.Health) &&
		e.Affinity == o.Affinity && e.OnePacket == o.OnePacket && e.Idle == o.Idle && e.Fragments == o.Fragments &&
		e.Encap == o.Encap && e.BackupBelow == o.BackupBelow && e.FailOpen == o.FailOpen &&
		e.Scheduler == o.Scheduler && e.ScheduleBy == o.ScheduleBy && e.Track == o.Track && e.Cookie == o.Cookie && e.NAT == o.NAT &&
		e.FlowsFirst == o.FlowsFirst && e.KeepDead == o.KeepDead && e.QUIC.Equal(o.QUIC)
}

// SameSlice reports whether both slices are the same part of one array, or both are empty. Slices
// that are never modified in place are then equal.
func SameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// Order returns the endpoints ordered by key; a duplicate is an error. The argument is not
// modified.
func Order(endpoints []Endpoint) ([]Endpoint, error) {
	if disorder(endpoints) == 0 {
		return endpoints, nil
	}
	endpoints = slices.Clone(endpoints)
	slices.SortFunc(endpoints, func(a, b Endpoint) int { return CompareKeys(a.Key, b.Key) })
	if i := disorder(endpoints); i != 0 {
		return nil, fmt.Errorf("endpoint %s: given twice", FormatKey(endpoints[i].Key))
	}
	return endpoints, nil
}

// disorder returns the index of the first endpoint that is not greater than its predecessor, or 0
// if there is none.
func disorder(endpoints []Endpoint) int {
	for i := 1; i < len(endpoints); i++ {
		if a, b := &endpoints[i-1].Key, &endpoints[i].Key; a.VNI > b.VNI || a.VNI == b.VNI && !a.VIP.Less(b.VIP) && CompareKeys(*a, *b) >= 0 {
			return i
		}
	}
	return 0
}

// OfVIP returns the endpoints of a key's VIP. The endpoints must be ordered.
func OfVIP(endpoints []Endpoint, of lb.EndpointKey) []Endpoint {
	compare := func(e Endpoint, of lb.EndpointKey) int {
		return cmp.Or(cmp.Compare(e.Key.VNI, of.VNI), e.Key.VIP.Compare(of.VIP))
	}
	from, _ := slices.BinarySearchFunc(endpoints, of, compare)
	end := from
	for end < len(endpoints) && compare(endpoints[end], of) == 0 {
		end++
	}
	return endpoints[from:end]
}
