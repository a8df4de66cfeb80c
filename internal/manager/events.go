package manager

import (
	"cmp"
	"context"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// eventBounds: 64 MiB are 300,000 events, in the store and in the memory of every member. Half of
// them are reserved for events of nodes, managers and services without a tenant.
var eventBounds = bounds{bytes: 64 << 20, of: classBytes{pageTenants: 32 << 20}, age: 7 * 24 * time.Hour}

// maxEnds bounds the ends of leaders that are kept.
const maxEnds = 1000

// eventsPerResponse bounds one response of Events.
const eventsPerResponse = 500

// eventJournal is the journal of events, with the last event of each latch.
type eventJournal struct {
	*journal
	last told // journal.mu guards it
	// ended is the time at which a Tenant of this name was last deleted, if the journal has that
	// event. journal.mu guards it.
	ended map[string]time.Time
	// wrote is the time at which the newest page was written. ends holds, for each of the newest
	// maxEnds leaders, the time at which the last page before it was written, oldest first.
	// journal.mu guards both.
	wrote time.Time
	ends  []time.Time
}

func newEventJournal() *eventJournal {
	j := &eventJournal{last: told{}, ended: map[string]time.Time{}}
	j.journal = newJournal(dirEvents, j.read)
	return j
}

func (j *eventJournal) read(p *page, value []byte) error {
	var stored apiv1.StoredEvents
	if err := proto.Unmarshal(value, &stored); err != nil {
		return err
	}
	shareOut(p, stored.GetEvents(), eventShareOf)
	p.value, p.objects = value, map[uint32]bool{}
	for _, e := range stored.GetEvents() {
		p.objects[objectHash(e.GetKind(), "")] = true
		p.objects[objectHash(e.GetKind(), e.GetName())] = true
		j.last.note(e)
		if e.GetReason() == reasonLeaderChanged {
			j.ends = append(j.ends[max(0, len(j.ends)+1-maxEnds):], j.wrote)
		}
		if e.GetKind() == string(lb.KindTenant) && e.GetReason() == reasonDeleted {
			j.endLocked(e.GetName(), e.GetTime().AsTime())
		}
	}
	if p.at.After(j.wrote) {
		j.wrote = p.at
	}
	return nil
}

// endLocked records the deletion of a Tenant and removes those whose events are no longer kept.
func (j *eventJournal) endLocked(tenant string, at time.Time) {
	if j.ended[tenant].Before(at) {
		j.ended[tenant] = at
	}
	maps.DeleteFunc(j.ended, func(_ string, ended time.Time) bool { return at.Sub(ended) > eventBounds.age })
}

// since returns the pages of journal.since that were written at revision f.created or later, and
// sets f.after to the time when a Tenant with the name f.tenant was last deleted. Both bounds are
// necessary, because the event of a deletion may be lost, and events of the deleted Tenant may be
// written after the next one was created.
func (j *eventJournal) since(number uint64, f *eventFilter) (out []*page, next uint64, grown <-chan struct{}) {
	out, next, grown = j.journal.since(number, f.since)
	j.mu.Lock()
	defer j.mu.Unlock()
	f.after = j.ended[f.tenant]
	return slices.DeleteFunc(out, func(p *page) bool { return p.rev < f.created }), next, grown
}

// lastTold returns a copy of the last events of all latches.
func (j *eventJournal) lastTold() told {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.last.clone()
}

// lastSeen returns when a node was last seen, or zero if the journal has no stream event of it. A
// node that was connected when its leader ended was seen until that leader wrote its last page.
func (j *eventJournal) lastSeen(node string) time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	last := j.last.of(string(lb.KindNode), node, latchStream, "")
	if last.reason != reasonNodeConnected {
		return last.at
	}
	for _, end := range j.ends {
		if end.After(last.at) {
			return end
		}
	}
	return last.at
}

// objectHash returns the index entry of an object in a page, or of a whole kind if name is empty.
func objectHash(kind, name string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(kind + "/" + name))
	return h.Sum32()
}

// eventFilter selects the events of one call of Events. The interceptor decides which events a
// tenant may see; leaving out others' events here only saves the cost.
type eventFilter struct {
	kind, name string
	// tenant, if not empty, selects its events only. It is empty for callers of other roles.
	tenant string
	since  time.Time
	// created is the revision that created the tenant, or the object of name; 0 is no bound.
	created int64
	// after selects only later events; zero is no bound.
	after time.Time
}

func (f *eventFilter) wants(e *apiv1.Event) bool {
	return (f.tenant == "" || e.GetTenant() == f.tenant) && (f.kind == "" || e.GetKind() == f.kind) && (f.name == "" || e.GetName() == f.name) &&
		!e.GetTime().AsTime().Before(f.since) && (f.after.IsZero() || e.GetTime().AsTime().After(f.after))
}

// read returns the events of pages, oldest first.
func (f *eventFilter) read(pages []*page) ([]*apiv1.Event, error) {
	var out []*apiv1.Event
	for _, p := range pages {
		if f.kind != "" && !p.objects[objectHash(f.kind, f.name)] {
			continue
		}
		var stored apiv1.StoredEvents
		if err := proto.Unmarshal(p.value, &stored); err != nil {
			return nil, err
		}
		for _, e := range stored.GetEvents() {
			if f.wants(e) {
				out = append(out, e)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b *apiv1.Event) int { return a.GetTime().AsTime().Compare(b.GetTime().AsTime()) })
	return out, nil
}

// Events implements the API. A stream that follows begins with a response, which is empty if there
// is no event yet.
func (a api) Events(ctx context.Context, req *connect.Request[apiv1.EventsRequest], stream *connect.ServerStream[apiv1.EventsResponse]) error {
	f := eventFilter{kind: req.Msg.GetKind(), name: req.Msg.GetName(), tenant: identityOf(ctx).tenant}
	if faults := eventFaults(req.Msg); len(faults) > 0 {
		return fault(invalid{faults})
	}
	if f.tenant != "" {
		f.created = a.m.view.createdAt(ref{lb.KindTenant, f.tenant})
	}
	if req.Msg.GetSince() != nil {
		f.since = req.Msg.GetSince().AsTime()
	}
	for number, begins := uint64(0), true; ; {
		pages, next, grown := a.m.view.events.since(number, &f)
		number = next
		done, err := takeTurn(ctx)
		if err != nil {
			return fault(err)
		}
		events, err := f.read(pages)
		done()
		if err != nil {
			return fault(err)
		}
		for chunk := range slices.Chunk(events, eventsPerResponse) {
			if err := stream.Send(&apiv1.EventsResponse{Events: chunk}); err != nil {
				return err
			}
		}
		if !req.Msg.GetFollow() {
			return nil
		}
		if begins && len(events) == 0 {
			if err := stream.Send(&apiv1.EventsResponse{}); err != nil {
				return err
			}
		}
		begins = false
		select {
		case <-grown:
		case <-ctx.Done():
			return nil
		case <-a.m.ctx.Done():
			return connect.NewError(connect.CodeUnavailable, context.Cause(a.m.ctx))
		}
	}
}

func eventFaults(req *apiv1.EventsRequest) (faults []lb.Violation) {
	if kind := req.GetKind(); kind != "" && kind != kindManager {
		if _, err := parseKind("kind", kind); err != nil {
			faults = append(faults, lb.Violation{Field: "kind", Value: kind, Allowed: "must be a kind of objects, or " + kindManager})
		}
	} else if kind == "" && req.GetName() != "" {
		faults = append(faults, lb.Violation{Field: "kind", Value: kind, Allowed: "must be given with a name"})
	}
	if since := req.GetSince(); since != nil && since.CheckValid() != nil {
		faults = append(faults, lb.Violation{Field: "since", Value: since.String(), Allowed: "must be a time"})
	}
	return faults
}

// shape returns a message with each word that has a digit replaced, so that addresses and numbers
// do not count.
func shape(message string) string {
	var b strings.Builder
	for word := range strings.FieldsSeq(message) {
		if strings.ContainsAny(word, "0123456789") {
			word = "#"
		}
		b.WriteString(word)
		b.WriteByte(' ')
	}
	return b.String()
}

// mergeEvents merges two equal events: with the time of the first and the message of the last.
func mergeEvents(old, now *apiv1.Event) *apiv1.Event {
	now.Time, now.Count = old.GetTime(), old.GetCount()+now.GetCount()
	now.Revision = cmp.Or(now.GetRevision(), old.GetRevision())
	now.Changes = newestChanges(slices.Concat(old.GetChanges(), now.GetChanges()))
	return now
}

// newestChanges returns the last change of each backend, in order, at most maxChanges.
func newestChanges(all []*apiv1.HealthChange) []*apiv1.HealthChange {
	type backend struct {
		dip  string
		port uint32
	}
	seen := map[backend]bool{}
	var out []*apiv1.HealthChange
	for _, c := range slices.Backward(all) {
		if b := (backend{c.GetDip(), c.GetDipPort()}); !seen[b] && len(out) < maxChanges {
			seen[b] = true
			out = append(out, c)
		}
	}
	slices.Reverse(out)
	return out
}

// wrote adds the events of a change by a caller.
func (m *Manager) wrote(entry *apiv1.AuditEntry, changes []*apiv1.Change) {
	// the same for all, so that objects deleted with their Tenant end no later than it
	at := timestamppb.New(m.o.Clock.Now())
	for _, ch := range changes {
		e := &apiv1.Event{Kind: ch.GetKind(), Name: ch.GetName(), Reason: reasonApplied, Revision: entry.GetRevision(), Time: proto.CloneOf(at)}
		e.Tenant, _ = tenantOf(ch.GetAfter())
		switch ch.GetAction() {
		case apiv1.Change_ACTION_UNCHANGED:
			continue
		case apiv1.Change_ACTION_DELETED:
			e.Reason = reasonDeleted
			e.Tenant, _ = tenantOf(ch.GetBefore())
		}
		e.Message = actionText(ch.GetAction()) + " by " + entry.GetWho()
		m.event(e)
	}
}
