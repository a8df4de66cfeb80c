package lb_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestStateChecksAsValidateState applies random changes, valid and not, to a State. Before each
// change Check must return the faults of ValidateAfter, and afterwards those of ValidateState for
// all objects.
func TestStateChecksAsValidateState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state, all := lb.NewState(), map[string]lb.Object{}
		list := func() []lb.Object {
			var out []lb.Object
			for _, o := range all {
				out = append(out, o)
			}
			return out
		}
		for range rapid.IntRange(1, 12).Draw(t, "changes") {
			edits, before := rapid.SliceOfN(rapid.Custom(edit), 0, 4).Draw(t, "edits"), list()
			for _, e := range edits {
				at := string(e.Kind) + e.Name
				if delete(all, at); e.Object != nil {
					all[at] = e.Object
				}
			}
			if got, want := state.Check(edits...), lb.ValidateAfter(before, list(), edits); !reflect.DeepEqual(got, want) {
				t.Fatalf("before the change\n got: %v\nwant: %v", texts(got), texts(want))
			}
			if rapid.IntRange(0, 3).Draw(t, "one by one") == 0 {
				for _, e := range edits {
					state.Apply(e)
				}
			} else {
				state.Apply(edits...)
			}
			want := lb.ValidateState(list())
			if got := state.Check(); !reflect.DeepEqual(got, want) {
				t.Fatalf("after the change\n got: %v\nwant: %v", texts(got), texts(want))
			}
		}
	})
}

// edit puts or removes one of a few objects with few addresses.
func edit(t *rapid.T) lb.Edit {
	name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name")
	gone := rapid.IntRange(0, 4).Draw(t, "gone") == 0
	few := func(format string) []netip.Addr {
		var out []netip.Addr
		for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(1, 4), 1, 2, rapid.ID).Draw(t, "addresses") {
			out = append(out, addr(fmt.Sprintf(format, i)))
		}
		return out
	}
	var o lb.Object
	switch rapid.SampledFrom([]lb.Kind{lb.KindService, lb.KindService, lb.KindNode, lb.KindNetwork, lb.KindTenant, lb.KindPolicy}).Draw(t, "kind") {
	case lb.KindTenant:
		quota := func(name string) uint32 { return rapid.Uint32Range(0, 3).Draw(t, name) }
		o = &lb.Tenant{Quotas: lb.Quotas{Services: quota("services"), Endpoints: quota("endpoints"), Backends: quota("backends")}}
	case lb.KindPolicy:
		o = &lb.Policy{Tenant: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "owner")}
	case lb.KindService:
		s := validService()
		s.VIPs = few("203.0.113.%d")
		s.Tenant = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant")
		s.Policy = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "policy")
		s.Endpoints = s.Endpoints[:1]
		s.Endpoints[0].Backends = s.Endpoints[0].Backends[:1]
		backend(s).Host, backend(s).DIPs = few("10.20.1.%d")[0], few("10.20.%d.11")[:1]
		if rapid.Bool().Draw(t, "translated") {
			s.Endpoints[0].Path = lb.PathNAT
		} else if rapid.Bool().Draw(t, "owns") {
			e := &s.Endpoints[0]
			e.Affinity, e.Cookie, e.Rewrite = lb.AffinityCookie, lb.Cookie{Form: lb.CookieCO}, lb.RewriteNone
			for _, host := range few("10.20.1.%d") {
				e.Backends = append(e.Backends, lb.Backend{DIPs: []netip.Addr{host}, Port: 80, Host: host})
			}
		}
		o = s
	case lb.KindNode:
		n := validNode()
		n.Addresses = few("10.20.1.%d")
		n.Role = rapid.SampledFrom([]lb.Role{lb.RoleMux, lb.RoleHost}).Draw(t, "role")
		if n.Role == lb.RoleMux && rapid.Bool().Draw(t, "translates") {
			n.NAT = &lb.NAT{Addresses: few(rapid.SampledFrom([]string{"10.20.%d.11", "10.20.1.%d", "203.0.113.%d"}).Draw(t, "nat"))}
		}
		o = n
	case lb.KindNetwork:
		n := validNetwork()
		n.VIPs = []netip.Prefix{prefix(rapid.SampledFrom([]string{"203.0.113.0/24", "203.0.113.0/30", "203.0.113.4/30", "0.0.0.0/0"}).Draw(t, "vips"))}
		n.Underlay = []netip.Prefix{prefix(rapid.SampledFrom([]string{"10.0.0.0/8", "10.20.0.0/15", "10.20.1.0/24", "10.20.2.0/24"}).Draw(t, "underlay"))}
		o = n
	}
	if n, ok := o.(*lb.Network); ok && rapid.Bool().Draw(t, "gue") {
		n.Encap = lb.EncapGUE
	}
	rename(o, name)
	e := lb.PutEdit(o)
	if gone {
		e.Object = nil
	}
	return e
}
