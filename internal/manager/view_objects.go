package manager

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// createdAt returns the revision that created an object, or 0 if there is none.
func (v *view) createdAt(r ref) int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if rec := v.records[r]; rec != nil {
		return rec.created
	}
	return 0
}

func (v *view) foldObjectLocked(ev store.Event, c *change, touched touched) error {
	r, ok := parseObjectKey(ev.KV.Key)
	if !ok {
		return fmt.Errorf("must be objects/KIND/NAME")
	}
	c.objects = append(c.objects, r)
	old := v.records[r]
	if old != nil {
		v.forgetLocked(old.obj, touched)
		v.holdLocked(old, -1)
	}
	if ev.Deleted {
		delete(v.records, r)
		c.surroundings = c.surroundings || r.kind == lb.KindNetwork
		return nil
	}
	rec, err := parseRecord(ev.KV)
	if err != nil {
		return err
	}
	switch {
	case rec.created != 0:
	case old != nil:
		rec.created = old.created
	default:
		rec.created = rec.mod
	}
	v.records[r] = rec
	v.holdLocked(rec, 1)
	switch o := rec.obj.(type) {
	case *lb.Service:
		v.state.Services[o.Name], v.state.Created[o.Name] = o, rec.created
		touched.services[o.Name] = true
		v.vips.claim(o)
		plan.EachEndpoint(o, func(key lb.EndpointKey, ep *lb.Endpoint) {
			v.owners[key] = owner{o, ep}
			touched.endpoints[key] = true
		})
	case *lb.Node:
		v.state.Nodes[o.Name] = o
		if o.Role == lb.RoleMux {
			v.muxes[o.Name] = o
		}
	case *lb.Network:
		v.state.Networks[o.Name] = o
		c.surroundings = true
	case *lb.Tenant:
		v.state.Tenants[o.Name] = o
	case *lb.Policy:
		v.state.Policies[o.Name] = o
	}
	return nil
}

// forgetLocked removes an object. It removes only endpoints that still belong to the object,
// because an endpoint may have moved to another service within the same revision.
func (v *view) forgetLocked(o lb.Object, touched touched) {
	switch o := o.(type) {
	case *lb.Service:
		delete(v.state.Services, o.Name)
		delete(v.state.Created, o.Name)
		touched.services[o.Name] = true
		v.vips.disclaim(o, touched)
		plan.EachEndpoint(o, func(key lb.EndpointKey, _ *lb.Endpoint) {
			if v.owners[key].svc == o {
				delete(v.owners, key)
			}
			touched.endpoints[key] = true
		})
	case *lb.Node:
		delete(v.state.Nodes, o.Name)
		delete(v.muxes, o.Name)
	case *lb.Network:
		delete(v.state.Networks, o.Name)
	case *lb.Tenant:
		delete(v.state.Tenants, o.Name)
	case *lb.Policy:
		delete(v.state.Policies, o.Name)
	}
}

func parseRecord(kv store.KV) (*record, error) {
	api := &apiv1.Object{}
	if err := proto.Unmarshal(kv.Value, api); err != nil {
		return nil, err
	}
	api.Revision = kv.ModRevision
	obj, faults := convert.FromObject(api, 0)
	if len(faults) > 0 {
		return nil, fmt.Errorf("stored object: %s", faults[0])
	}
	return &record{obj: obj, stored: api, mod: kv.ModRevision, created: kv.CreateRevision, size: len(kv.Value)}, nil
}

func (v *view) foldStateLocked(ev store.Event, touched touched) error {
	if ev.Deleted {
		key, err := plan.ParseKey(strings.TrimPrefix(ev.KV.Key, dirStates))
		if err != nil {
			return err
		}
		touched.state(v.state.Endpoints[key], plan.EndpointState{Key: key})
		delete(v.stateMod, key)
		delete(v.state.Endpoints, key)
		return nil
	}
	var stored apiv1.StoredEndpoint
	if err := proto.Unmarshal(ev.KV.Value, &stored); err != nil {
		return err
	}
	st, err := convert.FromStoredEndpoint(&stored)
	if err != nil {
		return err
	}
	touched.state(v.state.Endpoints[st.Key], st)
	v.state.Endpoints[st.Key], v.stateMod[st.Key] = st, ev.KV.ModRevision
	return nil
}

// state marks an endpoint whose state changed, and the cookie keys of its VIP if it starts or stops
// fading.
func (t touched) state(old, next plan.EndpointState) {
	t.endpoints[next.Key] = true
	if old.Fading.IsZero() != next.Fading.IsZero() {
		t.keys[cookiesOf(plan.VIPOf(next.Key))] = true
	}
}

func (v *view) foldRingKeyLocked(ev store.Event, c *change) error {
	if ev.Deleted {
		gone, err := strconv.ParseUint(strings.TrimPrefix(ev.KV.Key, dirRingKeys), 10, 32)
		if err != nil || gone <= clusterRingKey {
			return fmt.Errorf("ring key was deleted")
		}
		v.state.RingKeys = slices.DeleteFunc(slices.Clone(v.state.RingKeys), func(o plan.Key) bool { return uint64(o.ID) == gone })
		return nil
	}
	k, err := v.secrets.openKey(ev.KV.Key, ev.KV.Value)
	if err != nil {
		return err
	}
	keys := slices.DeleteFunc(slices.Clone(v.state.RingKeys), func(o plan.Key) bool { return o.ID == k.ID })
	v.state.RingKeys = append(keys, k)
	slices.SortFunc(v.state.RingKeys, func(a, b plan.Key) int { return cmp.Compare(a.ID, b.ID) })
	if k.ID != clusterRingKey {
		return nil // not sent to nodes
	}
	v.items.ringKeys[plan.KeyItem(k.ID)] = convert.KeyItem(k)
	c.items = append(c.items, plan.KeyItem(k.ID))
	return nil
}
