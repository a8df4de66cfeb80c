package manager

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// record is an object as it is stored. It is never modified.
type record struct {
	obj lb.Object
	// stored is what was said of it, with revision, generation and owners in their short form.
	stored *apiv1.Object
	mod    int64
}

// revision is the store's at the object's last change; 0 of an object that is not there.
func (r *record) revision() int64 {
	if r == nil {
		return 0
	}
	return r.stored.GetRevision()
}

// generation is 0 of an object that is not there.
func (r *record) generation() int64 {
	if r == nil {
		return 0
	}
	return r.stored.GetGeneration()
}

// owner is the endpoint that a key belongs to.
type owner struct {
	svc *lb.Service
	ep  *lb.Endpoint
}

// hostItem is a binding's item and the host address that decides who gets it.
type hostItem struct {
	host netip.Addr
	item *apiv1.PlanItem
}

// view is the store's content in memory, with the plan items made of it. It follows the store's watch; only fold
// changes it. Values in its maps are never modified, so that readers may keep them.
type view struct {
	secrets *secrets
	// events and audit are the journals; they have locks of their own.
	events *eventJournal
	audit  *journal

	mu sync.RWMutex
	// rev is the newest revision folded; planRev the newest that changed an object, a state or a key.
	rev, planRev int64
	records      map[ref]*record
	state        plan.State
	// wanted are the objects, indexed for validation.
	wanted    *lb.State
	stateMod  map[lb.EndpointKey]int64
	serialMod int64
	leader    leaderKey
	// epochMod and schemaMod are revisions of their keys; 0 while they are absent.
	epochMod, schemaMod int64
	// schema is the store's, 0 while it has none; newest is that of this program.
	schema, newest int64
	// restored is the epoch that the state was restored with; 0 when it never was.
	restored int64
	// mods are the revisions of all keys, to find what went while the watch was broken.
	mods    map[string]int64
	tokens  map[string]*apiv1.StoredToken
	revoked map[string]*apiv1.StoredRevocation
	// managers are the members that are up.
	managers map[string]*apiv1.StoredManager
	owners   map[lb.EndpointKey]owner
	// networks are the state's, ordered.
	networks    lb.Networks
	items       items
	vips        vips
	subscribers map[subscriber]bool
	// accesses are the access tokens by id.
	accesses map[string]*apiv1.StoredAccess
	audience audience
	// advanced is closed and replaced at every fold.
	advanced chan struct{}
}

// subscriber is told of every fold while the view is locked; it must not block nor call the view.
type subscriber interface{ note(c change) }

// change is what a fold did.
type change struct {
	objects []ref
	// items whose content may have changed, for every mux, and by name for some muxes.
	items    []string
	muxItems map[string][]string
	// bindings that may have changed, by the host address they have or had.
	bindings map[netip.Addr]*bindings
	// endpoints whose state, owner or surroundings changed.
	endpoints []lb.EndpointKey
	// revoked are the ids of access tokens that are gone.
	revoked []string
	// surroundings: networks or managers changed, every node's own items must be computed afresh.
	surroundings bool
	// epoch: a new leadership term began.
	epoch bool
}

func newView(s *secrets) *view {
	return &view{
		events: newEventJournal(), audit: newAuditJournal(),
		newest: Schema, secrets: s, records: map[ref]*record{}, wanted: lb.NewState(), stateMod: map[lb.EndpointKey]int64{},
		state: plan.State{
			Networks: map[string]*lb.Network{}, Nodes: map[string]*lb.Node{}, Services: map[string]*lb.Service{},
			Tenants: map[string]*lb.Tenant{}, Policies: map[string]*lb.Policy{}, Endpoints: map[lb.EndpointKey]plan.EndpointState{},
			Places: map[place.Key]plan.Place{},
		},
		vips:   newVIPs(),
		tokens: map[string]*apiv1.StoredToken{}, revoked: map[string]*apiv1.StoredRevocation{}, managers: map[string]*apiv1.StoredManager{},
		owners: map[lb.EndpointKey]owner{}, items: newItems(), mods: map[string]int64{},
		accesses:    map[string]*apiv1.StoredAccess{},
		subscribers: map[subscriber]bool{}, audience: newAudience(), advanced: make(chan struct{}),
	}
}

// load brings the view to a snapshot of the whole store. A later one than the last folds as what changed in between.
func (v *view) load(snap store.Snapshot) error {
	batch := store.Batch{Revision: snap.Revision}
	present := make(map[string]bool, len(snap.KVs))
	v.mu.RLock()
	for _, kv := range snap.KVs {
		present[kv.Key] = true
		if v.mods[kv.Key] != kv.ModRevision {
			batch.Events = append(batch.Events, store.Event{KV: kv})
		}
	}
	for key := range v.mods {
		if !present[key] {
			batch.Events = append(batch.Events, store.Event{KV: store.KV{Key: key}, Deleted: true})
		}
	}
	v.mu.RUnlock()
	return v.fold(batch)
}

// fold takes in one revision.
func (v *view) fold(b store.Batch) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var c change
	touched := touched{endpoints: map[lb.EndpointKey]bool{}, services: map[string]bool{}, vips: map[place.Key]bool{}}
	for _, ev := range b.Events {
		if err := v.foldEventLocked(ev, &c, touched); err != nil {
			return fmt.Errorf("revision %d: key %s: %w", b.Revision, ev.KV.Key, err)
		}
		if v.mods[ev.KV.Key] = ev.KV.ModRevision; ev.Deleted {
			delete(v.mods, ev.KV.Key)
		}
		// That a key went while the watch was broken says nothing of when; the serial key does.
		if planned(ev.KV.Key) && ev.KV.ModRevision > 0 {
			v.planRev = max(v.planRev, ev.KV.ModRevision)
		}
	}
	v.wanted.Apply(v.editsLocked(c.objects)...)
	v.spreadLocked(c.objects, touched)
	v.rev = b.Revision
	v.state.Revision = v.planRev
	v.retouchLocked(touched, &c)
	for s := range v.subscribers {
		s.note(c)
	}
	v.tellLocked(c)
	close(v.advanced)
	v.advanced = make(chan struct{})
	return nil
}

// spreadLocked touches what depends on objects that changed without belonging to them: services that name a policy, and
// endpoints whose tunnel is their VIP's Network's.
func (v *view) spreadLocked(changed []ref, touched touched) {
	moved := false
	for _, r := range changed {
		if r.kind == lb.KindPolicy {
			v.wanted.Naming(r.name, func(service string) { touched.services[service] = true })
		}
		moved = moved || r.kind == lb.KindNetwork
	}
	if !moved {
		return
	}
	before := v.networks
	v.networks = v.state.AllNetworks()
	for key, own := range v.owners {
		if own.ep.Encap == "" && before.Encap(key.VIP) != v.networks.Encap(key.VIP) {
			touched.endpoints[key] = true
		}
	}
}

// editsLocked are what the view has of objects that changed.
func (v *view) editsLocked(changed []ref) []lb.Edit {
	edits := make([]lb.Edit, len(changed))
	for i, r := range changed {
		edits[i] = lb.Edit{Kind: r.kind, Name: r.name}
		if rec := v.records[r]; rec != nil {
			edits[i].Object = rec.obj
		}
	}
	return edits
}

// planned tells whether a key's change is a new revision for nodes and watchers. The serial key is in every write that
// deletes such a key: members that load the state later come to the same revision.
func planned(key string) bool {
	return key == keySerial || strings.HasPrefix(key, dirObjects) || strings.HasPrefix(key, dirStates) || strings.HasPrefix(key, dirRingKeys) ||
		strings.HasPrefix(key, dirPlacement)
}

// touched is what a fold may have changed of what items are made of.
type touched struct {
	endpoints map[lb.EndpointKey]bool
	services  map[string]bool
	vips      map[place.Key]bool
}

func (v *view) foldEventLocked(ev store.Event, c *change, touched touched) error {
	key := ev.KV.Key
	switch {
	case strings.HasPrefix(key, dirObjects):
		return v.foldObjectLocked(ev, c, touched)
	case strings.HasPrefix(key, dirStates):
		return v.foldStateLocked(ev, touched.endpoints)
	case strings.HasPrefix(key, dirPlacement):
		return v.foldPlacementLocked(ev, touched)
	case strings.HasPrefix(key, dirTokens):
		return foldMessage(ev, dirTokens, v.tokens, &apiv1.StoredToken{})
	case strings.HasPrefix(key, dirAccess):
		if ev.Deleted {
			c.revoked = append(c.revoked, strings.TrimPrefix(key, dirAccess))
		}
		return foldMessage(ev, dirAccess, v.accesses, &apiv1.StoredAccess{})
	case strings.HasPrefix(key, dirRevoked):
		return foldMessage(ev, dirRevoked, v.revoked, &apiv1.StoredRevocation{})
	case strings.HasPrefix(key, dirManagers):
		c.surroundings = true
		return foldMessage(ev, dirManagers, v.managers, &apiv1.StoredManager{})
	case strings.HasPrefix(key, dirEvents):
		return v.events.fold(ev)
	case strings.HasPrefix(key, dirAudit):
		return v.audit.fold(ev)
	case strings.HasPrefix(key, dirRingKeys):
		return v.foldRingKeyLocked(ev, c)
	case key == keyLeader:
		return v.foldLeaderLocked(ev, c)
	case key == keyEpoch:
		return v.foldEpochLocked(ev, c)
	case key == keyRestored:
		return v.foldRestoredLocked(ev)
	case key == keySchema:
		return v.foldSchemaLocked(ev)
	case key == keyCA:
		return v.foldCALocked(ev)
	case key == keySerial:
		v.serialMod = ev.KV.ModRevision
	}
	return nil
}

func foldMessage[M proto.Message](ev store.Event, dir string, into map[string]M, m M) error {
	name := strings.TrimPrefix(ev.KV.Key, dir)
	if ev.Deleted {
		delete(into, name)
		return nil
	}
	into[name] = m
	return proto.Unmarshal(ev.KV.Value, m)
}

func (v *view) foldRingKeyLocked(ev store.Event, c *change) error {
	if ev.Deleted {
		return fmt.Errorf("ring key was deleted")
	}
	k, err := v.secrets.openKey(ev.KV.Key, ev.KV.Value)
	if err != nil {
		return err
	}
	keys := slices.DeleteFunc(slices.Clone(v.state.RingKeys), func(o plan.Key) bool { return o.ID == k.ID })
	v.state.RingKeys = append(keys, k)
	slices.SortFunc(v.state.RingKeys, func(a, b plan.Key) int { return cmp.Compare(a.ID, b.ID) })
	v.items.ringKeys[plan.KeyItem(k.ID)] = convert.KeyItem(k)
	c.items = append(c.items, plan.KeyItem(k.ID))
	return nil
}

func (v *view) foldStateLocked(ev store.Event, touched map[lb.EndpointKey]bool) error {
	if ev.Deleted {
		key, err := plan.ParseKey(strings.TrimPrefix(ev.KV.Key, dirStates))
		if err != nil {
			return err
		}
		delete(v.stateMod, key)
		delete(v.state.Endpoints, key)
		touched[key] = true
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
	v.state.Endpoints[st.Key], v.stateMod[st.Key] = st, ev.KV.ModRevision
	touched[st.Key] = true
	return nil
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
	v.records[r] = rec
	switch o := rec.obj.(type) {
	case *lb.Service:
		v.state.Services[o.Name] = o
		touched.services[o.Name] = true
		v.vips.claim(o)
		plan.EachEndpoint(o, func(key lb.EndpointKey, ep *lb.Endpoint) {
			v.owners[key] = owner{o, ep}
			touched.endpoints[key] = true
		})
	case *lb.Node:
		v.state.Nodes[o.Name] = o
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

// forgetLocked takes an object out. Within one revision an endpoint may have moved to another service already: only
// what still belongs to this object goes.
func (v *view) forgetLocked(o lb.Object, touched touched) {
	switch o := o.(type) {
	case *lb.Service:
		delete(v.state.Services, o.Name)
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
	return &record{obj: obj, stored: api, mod: kv.ModRevision}, nil
}

// wait blocks until the view has folded the revision.
func (v *view) wait(ctx context.Context, revision int64) error {
	return v.until(ctx, func() bool { return v.rev >= revision })
}

func (v *view) subscribe(s subscriber) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.subscribers[s] = true
}

func (v *view) unsubscribe(s subscriber) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.subscribers, s)
}
