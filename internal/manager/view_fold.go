package manager

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/store"
)

// load brings the view to a snapshot of the whole store. asked is the view's revision when the
// snapshot was requested. A snapshot newer than the view is folded as the set of changes in
// between. A snapshot that the view has overtaken meanwhile, because of foldStored, is ignored. A
// snapshot older than asked is of a restored store, and is folded.
func (v *view) load(snap store.Snapshot, asked int64) error {
	batch := store.Batch{Revision: snap.Revision}
	present := make(map[string]bool, len(snap.KVs))
	v.mu.Lock()
	defer v.mu.Unlock()
	if asked <= snap.Revision && snap.Revision < v.rev {
		return nil
	}
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
	return v.foldLocked(batch)
}

// fold applies a revision from the watch, unless the view has it.
func (v *view) fold(b store.Batch) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if b.Revision <= v.rev {
		return nil
	}
	return v.foldLocked(b)
}

// foldStored applies a write that this member or the leader has just stored, before the watch
// delivers it. It does nothing if the view lacks an earlier revision. Transactions with only
// deletes are left to the watch: if all their keys were absent, nothing was stored, and the
// revision belongs to another write.
func (v *view) foldStored(ops []store.Op, revision int64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if revision != v.rev+1 || !slices.ContainsFunc(ops, func(op store.Op) bool { return !op.Delete }) {
		return nil
	}
	b := store.Batch{Revision: revision, Events: make([]store.Event, 0, len(ops))}
	for _, op := range ops {
		if _, present := v.mods[op.Key]; present || !op.Delete {
			b.Events = append(b.Events, store.Event{KV: store.KV{Key: op.Key, Value: op.Value, ModRevision: revision}, Deleted: op.Delete})
		}
	}
	return v.foldLocked(b)
}

// foldLocked applies one revision, or all changes since the last one.
func (v *view) foldLocked(b store.Batch) error {
	var c change
	touched := touched{endpoints: map[lb.EndpointKey]bool{}, services: map[string]bool{}, vips: map[place.Key]bool{}, keys: map[keySetID]bool{}}
	for _, ev := range b.Events {
		if err := v.foldEventLocked(ev, &c, touched); err != nil {
			return fmt.Errorf("revision %d: key %s: %w", b.Revision, ev.KV.Key, err)
		}
		if v.mods[ev.KV.Key] = ev.KV.ModRevision; ev.Deleted {
			delete(v.mods, ev.KV.Key)
		}
		// For a key deleted while the watch was broken the revision is unknown. The serial key has
		// it.
		if planned(ev.KV.Key) && ev.KV.ModRevision > 0 {
			v.planRev = max(v.planRev, ev.KV.ModRevision)
		}
	}
	v.wanted.Apply(v.editsLocked(c.objects)...)
	v.spreadLocked(c.objects, touched)
	v.reconfigureSNATLocked(c.objects, &c)
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

// spreadLocked marks services and endpoints that depend on changed objects without belonging to
// them: services that name a policy, and endpoints that use the tunnel of their VIP's Network. It
// marks all endpoints if the first switch was added or the last one removed.
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
	switched := (len(before.Switches()) == 0) != (len(v.networks.Switches()) == 0)
	for key, own := range v.owners {
		if switched || own.ep.Encap == "" && before.Encap(key.VIP) != v.networks.Encap(key.VIP) {
			touched.endpoints[key] = true
		}
	}
}

// editsLocked returns the view's versions of objects that changed.
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

// planned reports whether a change of the key is a new revision for nodes and watchers. The serial
// key is part of every write that deletes such a key, so members that load the state later reach
// the same revision.
func planned(key string) bool {
	return key == keySerial || key == keyCAChange || strings.HasPrefix(key, dirObjects) || strings.HasPrefix(key, dirStates) || strings.HasPrefix(key, dirRingKeys) ||
		strings.HasPrefix(key, dirPlacement) || strings.HasPrefix(key, dirTunnels) || isKeySet(key)
}

// touched collects the inputs of items that a fold may have changed.
type touched struct {
	endpoints map[lb.EndpointKey]bool
	services  map[string]bool
	vips      map[place.Key]bool
	keys      map[keySetID]bool
}

func (v *view) foldEventLocked(ev store.Event, c *change, touched touched) error {
	key := ev.KV.Key
	switch {
	case strings.HasPrefix(key, dirObjects):
		return v.foldObjectLocked(ev, c, touched)
	case strings.HasPrefix(key, dirStates):
		return v.foldStateLocked(ev, touched)
	case strings.HasPrefix(key, dirPlacement):
		return v.foldPlacementLocked(ev, touched)
	case strings.HasPrefix(key, dirTunnels):
		return v.foldTunnelsLocked(ev, c)
	case strings.HasPrefix(key, dirSNAT):
		return v.foldSNATLocked(ev, c)
	case strings.HasPrefix(key, dirTokens):
		return foldMessage(ev, dirTokens, v.tokens, &apiv1.StoredToken{})
	case strings.HasPrefix(key, dirAccess):
		if ev.Deleted {
			c.revoked = append(c.revoked, strings.TrimPrefix(key, dirAccess))
		}
		return foldMessage(ev, dirAccess, v.accesses, &apiv1.StoredAccess{})
	case strings.HasPrefix(key, dirRevoked):
		// The stream of a node ends when its own items are computed.
		c.surroundings, c.managersRevoked = true, true
		return foldMessage(ev, dirRevoked, v.revoked, &apiv1.StoredRevocation{})
	case strings.HasPrefix(key, dirManagers):
		c.surroundings = true
		return foldMessage(ev, dirManagers, v.managers, &apiv1.StoredManager{})
	case strings.HasPrefix(key, dirEvents):
		return v.events.fold(ev)
	case strings.HasPrefix(key, dirAudit):
		return v.audit.fold(ev)
	case isKeySet(key):
		return v.foldKeySetLocked(ev, c, touched)
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
	case key == keyCAChange:
		return v.foldCAChangeLocked(ev, c)
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
