package manager

import (
	"context"
	"net/netip"
	"sync"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
)

// record is an object as it is stored. It is never modified.
type record struct {
	obj lb.Object
	// stored is the stored object, with revision, generation and owners in their short form.
	stored *apiv1.Object
	mod    int64
	// created is the revision of the object's first version.
	created int64
	// size is that of the stored value.
	size int
}

// revision returns the store's revision at the object's last change, or 0 for a nil record.
func (r *record) revision() int64 {
	if r == nil {
		return 0
	}
	return r.stored.GetRevision()
}

// generation returns the object's generation, or 0 for a nil record.
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

// hostItem is a binding's item and the host address that determines the receiving node.
type hostItem struct {
	host netip.Addr
	item *apiv1.PlanItem
	// stamps: the host stamps cookies of the VIP for it.
	stamps bool
	vip    place.Key
}

// view is the store's content in memory, with the plan items made of it. It follows the store's
// watch, and also receives the leader's stored writes ahead of the watch. Only foldLocked changes
// it. Values in its maps are never modified, so that readers may keep them.
type view struct {
	secrets *secrets
	// events and audit are the journals; they have their own locks.
	events *eventJournal
	audit  *journal

	mu sync.RWMutex
	// rev is the newest revision folded. planRev is the newest that changed an object, a state or a
	// key. hostRev is the newest that changed bindings or repair items of hosts, and bindingRev the
	// newest that changed bindings, as far as this member saw the changes one by one.
	rev, planRev, hostRev, bindingRev int64
	records                           map[ref]*record
	// holdings holds the resource usage of each tenant's records.
	holdings map[string]holding
	state    plan.State
	// muxes holds the Nodes of state with role mux, by name, so that a scan of the muxes skips the
	// hosts.
	muxes map[string]*lb.Node
	// wanted holds the objects, indexed for validation.
	wanted   *lb.State
	stateMod map[lb.EndpointKey]int64
	keyMods  map[keySetID]int64
	// tunnelMods holds the revisions of the keys of changes of tunnelSources, by Network.
	tunnelMods map[string]int64
	serialMod  int64
	leader     leaderKey
	// epochMod and schemaMod are revisions of their keys; 0 while they are absent.
	epochMod, schemaMod int64
	// schema is the store's, 0 while it has none. newest is that of this program.
	schema, newest int64
	// restored is the epoch with which the state was restored, or 0 if it never was.
	restored int64
	// mods holds the revisions of all keys, to find keys that were deleted while the watch was
	// broken.
	mods    map[string]int64
	tokens  map[string]*apiv1.StoredToken
	revoked map[string]*apiv1.StoredRevocation
	// caChange is the last replacement of the CA, or nil if there was none. caMod is the revision
	// of its key.
	caChange *caChange
	caMod    int64
	// managers holds the members that are up.
	managers map[string]*apiv1.StoredManager
	owners   map[lb.EndpointKey]owner
	// networks holds the Networks of state, sorted.
	networks    lb.Networks
	items       items
	snat        snatView
	vips        vips
	subscribers map[subscriber]bool
	// accesses holds the access tokens by id.
	accesses map[string]*apiv1.StoredAccess
	audience audience
	// advanced is closed and replaced at every fold.
	advanced chan struct{}
}

// subscriber is notified of every fold while the view is locked. note must neither block nor call
// the view.
type subscriber interface{ note(c change) }

// change describes the effects of a fold.
type change struct {
	objects []ref
	// items holds the keys of items that may have changed, for every mux. muxItems holds those for
	// some muxes, by name.
	items    []string
	muxItems map[string][]string
	// bindings holds bindings that may have changed, by the host address that they have or had.
	bindings map[netip.Addr]*bindings
	// endpoints holds endpoints whose state, owner or surroundings changed.
	endpoints []lb.EndpointKey
	// revoked holds the ids of deleted access tokens.
	revoked []string
	// managersRevoked: certificates of managers were revoked, or admitted again.
	managersRevoked bool
	// surroundings: networks or managers changed, so every node's own items must be recomputed.
	surroundings bool
	// ca: the replacement of the CA began or took a step.
	ca bool
	// keys: keys of cookies or connection ids changed.
	keys bool
	// tunnels: a change of tunnelSources began, took a step or ended.
	tunnels bool
	// snatLeases: there are new leases. snatConf: the set of possible lease holders changed.
	snatLeases, snatConf bool
	// epoch: a new leadership term began.
	epoch bool
}

func newView(s *secrets) *view {
	return &view{
		events: newEventJournal(), audit: newAuditJournal(),
		newest: Schema, secrets: s, records: map[ref]*record{}, holdings: map[string]holding{}, wanted: lb.NewState(), stateMod: map[lb.EndpointKey]int64{},
		state: plan.State{
			Networks: map[string]*lb.Network{}, Nodes: map[string]*lb.Node{}, Services: map[string]*lb.Service{},
			Tenants: map[string]*lb.Tenant{}, Created: map[string]int64{}, Policies: map[string]*lb.Policy{}, Endpoints: map[lb.EndpointKey]plan.EndpointState{},
			Places: map[place.Key]plan.Place{}, Cookies: map[place.Key]plan.KeySet{}, CIDs: map[string]plan.KeySet{},
			Tunnels: map[string]plan.TunnelChange{},
		},
		muxes:      map[string]*lb.Node{},
		tunnelMods: map[string]int64{},
		keyMods:    map[keySetID]int64{},
		vips:       newVIPs(),
		tokens:     map[string]*apiv1.StoredToken{}, revoked: map[string]*apiv1.StoredRevocation{}, managers: map[string]*apiv1.StoredManager{},
		owners: map[lb.EndpointKey]owner{}, items: newItems(), snat: newSNATView(), mods: map[string]int64{},
		accesses:    map[string]*apiv1.StoredAccess{},
		subscribers: map[subscriber]bool{}, audience: newAudience(), advanced: make(chan struct{}),
	}
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
