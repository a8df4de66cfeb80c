package manager

import (
	"context"
	"crypto/x509"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
)

// Causes of the end of a node's stream.
var (
	errReplaced = errors.New("the node opened another stream")
	errDeleted  = errors.New("the node was deleted, or its certificates were revoked: it needs a new join token")
)

// session is one node's stream. Pending changes are kept as a set of keys, so that a slow node
// delays no other, uses no more memory than its plan, and receives only the newest version of each
// item.
type session struct {
	name string
	// role is that of the certificate. A Node object of another role yields no plan.
	role lb.Role
	cert *x509.Certificate
	// number orders the streams of all nodes: a node's newest stream has the highest. It is 0 for a
	// stream that is not its node's newest.
	number uint64
	// opened orders the streams of one node by the node's own clock. It is 0 if the node does not
	// report it.
	opened int64
	// manager is the member at which the stream ends. via is that member if it is another one, and
	// stream is the number of the stream there.
	manager string
	via     *follower
	stream  uint64
	hello   *apiv1.Hello
	ctx     context.Context
	end     context.CancelCauseFunc
	// floor is the lowest revision that its updates carry: see Manager.floor.
	floor int64
	// rewound is the epoch of the node's plan if the state went back within it (Manager.rewound),
	// else 0.
	rewound int64

	mu sync.Mutex
	// dirty holds the keys of the items to compare. all means every item.
	dirty map[string]bool
	all   bool
	// folds holds, for a mux, the changes behind dirty and all.
	folds []fold
	// moved: there is a new revision. urgent: it changed more than repair items.
	moved, urgent bool
	// telling: an update is being built. told is the revision of the last update sent, obeyed the
	// one that the node reported as applied.
	telling      bool
	told, obeyed int64
	// owed maps endpoints whose bindings changed for a host, and which it has not yet applied, to
	// the revision of the change.
	owed map[string]int64
	// behind is when the node's pending changes began, zero if it has applied all of them. late: it
	// did not apply them in time. No change waits for the node until it has once been fast enough.
	behind time.Time
	late   bool
	// paced is the end of the last delay that the manager itself inserted before an update (pacer).
	// This delay does not count as the node's.
	paced     time.Time
	questions []*apiv1.PlanUpdate
	// health holds the reports of hosts that were not yet sent to the node.
	health *apiv1.HealthReport
	// snatAnswers holds the answers that wait for a host.
	snatAnswers *apiv1.SnatAnswers
	// wake has room for one.
	wake chan struct{}

	// heardAt is the time of the last report, in nanoseconds of the manager's clock. It is 0 before
	// the first.
	heardAt atomic.Int64

	// These belong to the receiving goroutine. refuted is the last term that was proven although
	// the node applied a later epoch, refutedEpoch. acked is the revision that the node reported
	// last.
	refuted      *term
	refutedEpoch int64
	acked        int64
	// said holds the reports that wait to be processed, by class.
	said [classes]slot
	// writing is the Send in progress.
	writing writing
	// forwards: the node had a plan when it connected.
	forwards bool
	// takesLoad: the node is a mux that supports load reports.
	takesLoad bool
	// of is the registry that the session belongs to. It is nil only until the session is added.
	of *sessions

	// The rest belongs to the sending goroutine.
	sent     map[string]*apiv1.PlanItem
	epoch    int64 // of the last update
	snapshot bool  // the first update was made
	snat     snatTold
}

func newSession(ctx context.Context, id identity) *session {
	s := &session{
		name: id.name, role: lb.Role(id.role), cert: id.cert, dirty: map[string]bool{}, all: true, moved: true, urgent: true,
		owed: map[string]int64{}, wake: make(chan struct{}, 1), sent: map[string]*apiv1.PlanItem{}, acked: -1,
	}
	if s.role == lb.RoleMux {
		s.folds = []fold{{wide: true}}
	}
	s.writing.response = responseOf(ctx)
	s.ctx, s.end = context.WithCancelCause(ctx)
	s.signal()
	return s
}

// tell marks items that may have changed for the node at a revision. all means every item. hosts is
// the revision that hosts must apply first, or 0. The view must be locked.
func (s *session) tell(keys []string, all bool, revision, hosts int64) {
	s.mu.Lock()
	s.all, s.moved, s.urgent = s.all || all, true, s.urgent || all || !repairKeys(keys)
	for _, key := range keys {
		s.dirty[key] = true
	}
	if s.role == lb.RoleMux && (all || len(keys) > 0) {
		s.folds = addFold(s.folds, fold{first: revision, last: revision, keys: keys, wide: all, hosts: hosts})
	}
	s.signal()
	s.mu.Unlock()
	s.of.review(s)
}

// owe records endpoints whose changes the host must apply. It is called before tell, with the view
// locked.
func (s *session) owe(endpoints []string, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range endpoints {
		s.owed[e] = revision
	}
}

// owes returns the endpoints of which the host has not applied all changes, and the newest revision
// among them, or 0 if there are none.
func (s *session) owes() (endpoints []string, newest int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e, since := range s.owed {
		endpoints, newest = append(endpoints, e), max(newest, since)
	}
	return endpoints, newest
}

// maxQuestions is the maximum number of requests that wait for a node that does not read.
const maxQuestions = 64

// ask queues an update that carries a request. It returns false if too many wait.
func (s *session) ask(q *apiv1.PlanUpdate) bool {
	if s.via != nil {
		return s.via.ask(s.name, q)
	}
	if a := q.GetSnatAnswers(); a != nil {
		return s.askSNAT(a)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.questions) == maxQuestions {
		return false
	}
	s.questions = append(s.questions, q)
	s.signal()
	return true
}

func (s *session) signal() {
	notify.Send(s.wake)
}

// take empties the mailbox, except for the items of the held folds.
func (s *session) take(held []fold) (dirty map[string]bool, all, moved bool, questions []*apiv1.PlanUpdate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dirty, all, moved, questions = s.dirty, s.all, s.moved, s.questions
	s.dirty, s.all, s.moved, s.questions = map[string]bool{}, false, len(held) > 0, nil
	s.urgent = false
	if s.folds = held; len(held) > 0 {
		if held[0].wide {
			s.dirty, s.all, dirty, all = dirty, all, s.dirty, s.all
		}
		for _, f := range held {
			for _, key := range f.keys {
				delete(dirty, key)
				s.dirty[key] = true
			}
		}
	}
	s.telling = moved
	return dirty, all, moved, questions
}

// takeHealth returns the pending verdicts and clears them.
func (s *session) takeHealth() *apiv1.HealthReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.health
	s.health = nil
	return h
}

// sending records that an update of this revision is being sent. nil means that there is nothing to
// send.
func (s *session) sending(up *apiv1.PlanUpdate) {
	s.mu.Lock()
	s.telling = false
	if up != nil {
		s.told = up.Revision
	}
	s.mu.Unlock()
	s.of.review(s)
}

// updates returns the updates that the node must receive now. hold, if not nil, returns the folds
// to hold back. It is called with the view locked. deleted reports that the node was deleted or its
// certificates were revoked, even if a new Node object exists, because that one is for nodes that
// join again.
func (s *session) updates(v *view, hold func() []fold) (out []*apiv1.PlanUpdate, deleted bool) {
	up, moved, deleted, questions := s.next(v, hold)
	if moved {
		if !up.Snapshot && up.Epoch == s.epoch && len(up.Upsert) == 0 && len(up.Delete) == 0 && !deleted {
			up = nil
		}
		s.sending(up)
		if up != nil {
			s.epoch = up.Epoch
			up.Rewound = s.rewound != 0 && s.rewound == up.Epoch
			out = append(out, up)
		}
	}
	return append(out, questions...), deleted
}

// next empties the mailbox and builds the update for it. The view is locked meanwhile, so the
// update holds everything up to its revision.
func (s *session) next(v *view, hold func() []fold) (up *apiv1.PlanUpdate, moved, deleted bool, questions []*apiv1.PlanUpdate) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var held []fold
	if hold != nil {
		held = hold()
	}
	dirty, all, moved, questions := s.take(held)
	if !moved || len(held) > 0 && held[0].wide {
		return nil, false, false, questions
	}
	revision := v.planRev
	for _, f := range held {
		revision = min(revision, f.first-1)
	}
	up, deleted = s.updateLocked(v, dirty, all, revision)
	return up, true, deleted, questions
}

// updateLocked returns the difference between the items that the node has and those that it must
// have.
func (s *session) updateLocked(v *view, dirty map[string]bool, all bool, revision int64) (up *apiv1.PlanUpdate, deleted bool) {
	up = &apiv1.PlanUpdate{Revision: max(revision, s.floor), Epoch: v.state.Epoch, Snapshot: !s.snapshot}
	node := v.state.Nodes[s.name]
	deleted = s.cert != nil && v.revokedLocked(s.cert)
	if deleted || node != nil && node.Role != s.role {
		node = nil
	}
	all = all || node == nil
	want := map[string]*apiv1.PlanItem{}
	switch {
	case node != nil && all:
		want = v.allLocked(node)
	case node != nil:
		for key := range dirty {
			if item := v.itemLocked(node, key); item != nil {
				want[key] = item
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if item := want[key]; s.sent[key] != item && !proto.Equal(s.sent[key], item) {
			up.Upsert = append(up.Upsert, item)
		}
		s.sent[key] = want[key]
	}
	looked := maps.Keys(dirty)
	if all {
		looked = maps.Keys(s.sent)
	}
	for _, key := range slices.Sorted(looked) {
		if want[key] == nil && s.sent[key] != nil {
			delete(s.sent, key)
			up.Delete = append(up.Delete, key)
		}
	}
	s.snapshot = true
	return up, deleted
}

// sessions are the streams of all nodes: those that end here and, at a leader, those that end at
// its followers.
type sessions struct {
	mu     sync.Mutex
	clock  clock.Clock
	byNode map[string]*session // those that end here
	newest map[string]*session // wherever they end
	// open holds all streams that end here, including replaced ones that have not ended yet.
	open  map[*session]bool
	count uint64 // number of all sessions so far
	// behind holds the hosts that muxes wait for.
	behind map[*session]bool
	// stirred is closed and replaced whenever a host applied an update or left.
	stirred chan struct{}
	// joined and news have room for one. joined: a new session ends here. news: a node with a
	// session here may have caught up or fallen behind.
	joined, news chan struct{}
}

func newSessions(c clock.Clock) *sessions {
	return &sessions{
		clock: c, byNode: map[string]*session{}, newest: map[string]*session{}, open: map[*session]bool{}, behind: map[*session]bool{},
		stirred: make(chan struct{}), joined: make(chan struct{}, 1), news: make(chan struct{}, 1),
	}
}

// add makes a session that ends here the node's only one.
func (ss *sessions) add(s *session) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.replaceLocked(s)
	ss.byNode[s.name], ss.open[s] = s, true
	ss.reviewLocked(s, false)
	notify.Send(ss.joined)
}

// stamp numbers a stream of another member without making it one of the node's sessions here. It
// returns false if the node opened the one that ends here later.
func (ss *sessions) stamp(s *session) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if own := ss.byNode[s.name]; own != nil && s.opened <= own.opened {
		return false
	}
	ss.count++
	s.number, s.of = ss.count, ss
	return true
}

// adopt makes a session that ends at another member the node's only one. It returns false if the
// node opened another one later. Such a session may be adopted once the other one has ended.
func (ss *sessions) adopt(s *session) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if n := ss.newest[s.name]; n != nil && s.opened < n.opened {
		return false
	}
	ss.replaceLocked(s)
	return true
}

// replaceLocked makes the session the node's newest, and ends the one that ends here.
func (ss *sessions) replaceLocked(s *session) {
	if old := ss.byNode[s.name]; old != nil {
		old.end(errReplaced)
		delete(ss.behind, old)
	}
	ss.count++
	s.number, s.of = ss.count, ss
	ss.newest[s.name] = s
}

// remove removes the session and reports whether it was still the node's newest.
func (ss *sessions) remove(s *session) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.open, s)
	if ss.byNode[s.name] == s {
		delete(ss.byNode, s.name)
		delete(ss.behind, s)
		ss.stirLocked()
		notify.Send(ss.news)
	}
	if ss.newest[s.name] != s {
		return false
	}
	delete(ss.newest, s.name)
	return true
}

// all returns the open sessions that end here.
func (ss *sessions) all() []*session {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return slices.Collect(maps.Keys(ss.open))
}

// get returns the node's newest session, wherever it ends.
func (ss *sessions) get(name string) *session {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.newest[name]
}

// here returns the node's session that ends here.
func (ss *sessions) here(name string) *session {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.byNode[name]
}
