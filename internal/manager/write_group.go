package manager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// A transaction of the store takes as long as the disks of a majority of its members. Writes that
// arrive meanwhile are stored by one transaction, at one revision, as if they were executed one
// after the other. This applies to writes that touch different objects and endpoints, and are valid
// together.

// maxGroupOps bounds the operations of a transaction of several writes.
const maxGroupOps = 512

// request is a write that waits for its turn. term.writing guards its result.
type request struct {
	ctx  context.Context
	edit func(*term, *write) error
	by   identity
	dry  bool // it is only computed

	done     bool
	revision int64
	changes  []*apiv1.Change
	err      error
}

func (r *request) answer(revision int64, changes []*apiv1.Change, err error) {
	r.done, r.revision, r.changes, r.err = true, revision, changes, err
}

// requests holds the waiting requests, in order of arrival.
type requests struct {
	mu      sync.Mutex
	waiting []*request
}

func (q *requests) add(r *request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, r)
}

func (q *requests) take() []*request {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.waiting
	q.waiting = nil
	return out
}

// part is one write of a group.
type part struct {
	r     *request
	w     *write
	entry *apiv1.AuditEntry
}

// serve answers all requests. The caller holds term.writing.
func (t *term) serve(rs []*request) {
	alone := 0 // number of requests to serve one by one, because they are not valid together
	for conflicts := 0; ; {
		base := t.m.view.snapshot()
		group, all := newWrite(base), []part{}
		for _, r := range rs {
			if r.done || len(all) > 0 && alone > 0 {
				continue
			}
			if err := r.ctx.Err(); err != nil {
				r.answer(0, nil, context.Cause(r.ctx))
				continue
			}
			w, err := t.compute(r, base)
			switch {
			case err != nil || len(w.txn.Ops) == 0:
				r.answer(t.unstored(r, w, err))
			case len(all) == 0 || group.goesWith(w):
				group.include(w)
				all = append(all, part{r: r, w: w})
			}
		}
		if len(all) == 0 {
			return // all are answered
		}
		if err := group.finish(t.m.conditions()); err != nil {
			if len(all) > 1 {
				alone = len(all)
				continue
			}
			all[0].r.answer(t.unstored(all[0].r, group, err))
		} else if !t.store(group, all) {
			if conflicts++; conflicts < maxAttempts {
				continue
			}
			for _, p := range all {
				p.r.answer(0, nil, errors.New("too many writes at once, try again"))
			}
		}
		alone = max(0, alone-1)
	}
}

// compute returns the write that a request would make.
func (t *term) compute(r *request, base *snapshot) (*write, error) {
	w := newWrite(base)
	w.by = r.by
	if err := r.edit(t, w); err != nil {
		return w, err
	}
	if faults := w.overDefaults(t.m.reports.room); len(faults) > 0 {
		return w, invalid{faults}
	}
	if w.by.role != pki.RoleTenant {
		return w, nil
	}
	if faults := w.overHolding(); len(faults) > 0 {
		return w, invalid{faults}
	}
	if faults := w.overHostShares(t.m.reports.hostTables); len(faults) > 0 {
		return w, invalid{faults}
	}
	if faults := base.foreign(w.by, t.m.managerAddrs(), w.edited); len(faults) > 0 {
		return w, invalid{w.asSaid(faults)}
	}
	return w, nil
}

// try computes a request that is not stored. It does not lock writing, because a large request must
// not delay other writes. If a write was stored meanwhile it computes the request again, up to
// maxAttempts times. The last result may then mix two revisions.
func (t *term) try(r *request) (*request, *write, error) {
	for attempt := 1; ; attempt++ {
		if w, whole, err := t.tryOnce(r); whole || attempt == maxAttempts {
			return r, w, err
		}
	}
}

// tryOnce computes a request once. whole is true if no write was stored meanwhile or the caller has
// gone: a repetition would return the same.
func (t *term) tryOnce(r *request) (w *write, whole bool, err error) {
	base := t.m.view.snapshot()
	// Use a separate term, because writing guards issued, and a revocation that is not stored may
	// have any time.
	w, err = (&term{m: t.m}).compute(r, base)
	if err == nil && r.ctx.Err() == nil {
		err = w.finish(t.m.conditions())
	}
	if r.ctx.Err() != nil {
		return w, true, context.Cause(r.ctx)
	}
	return w, t.m.view.snapshot().serialMod == base.serialMod, err
}

// unstored returns the answer to a request that stores nothing.
func (t *term) unstored(r *request, w *write, err error) (int64, []*apiv1.Change, error) {
	if lost := t.hold(r.ctx); lost != nil {
		return 0, nil, lost
	}
	if err != nil {
		if !r.dry {
			t.m.overQuota(r.ctx, err)
		}
		return 0, nil, err
	}
	return w.base.planRev, w.changes, nil
}

// store commits a group and answers its requests. It returns false if another write was stored
// meanwhile, and nothing was done.
func (t *term) store(group *write, all []part) bool {
	refuse := func(err error) bool {
		for _, p := range all {
			p.r.answer(0, nil, err)
		}
		return true
	}
	txn := group.fenced()
	for i := range all {
		p := &all[i]
		p.entry = t.m.auditEntry(p.r.ctx, append(changesText(p.w.changes), p.w.ended...)...)
		op, err := t.auditOp(p.entry)
		if err != nil {
			return refuse(err)
		}
		txn.Ops = append(txn.Ops, op)
	}
	ctx, cancel := t.whileWanted(all)
	defer cancel()
	res, err := t.commit(ctx, txn)
	if err != nil {
		return refuse(err)
	}
	if res.Succeeded {
		for _, p := range all {
			t.m.auditDone(p.entry, res.Revision)
			t.m.wrote(p.entry, p.w.changes)
		}
		t.m.stepped(group.steps, res.Revision)
	}
	if err := t.wait(ctx, res.Revision); err != nil {
		return refuse(fmt.Errorf("stored at revision %d, but not yet published: %w", res.Revision, err))
	}
	if !res.Succeeded {
		return false
	}
	for _, p := range all {
		p.w.stamp(res.Revision)
		p.r.answer(res.Revision, p.w.changes, nil)
	}
	return true
}

// whileWanted returns a context that ends with the term, or when all callers have gone.
func (t *term) whileWanted(all []part) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(t.ctx)
	var left atomic.Int32
	left.Store(int32(len(all)))
	stops := make([]func() bool, len(all))
	for i, p := range all {
		stops[i] = context.AfterFunc(p.r.ctx, func() {
			if left.Add(-1) == 0 {
				cancel(context.Cause(p.r.ctx))
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}

// goesWith reports whether another write on the same base touches nothing that this one touches.
func (w *write) goesWith(o *write) bool {
	if len(w.txn.Ops)+len(o.txn.Ops) > maxGroupOps {
		return false
	}
	for r := range o.edited {
		if _, both := w.edited[r]; both {
			return false
		}
	}
	for key := range o.keys {
		if w.keys[key] {
			return false
		}
	}
	keys := make(map[string]bool, len(w.txn.Ops)+len(w.txn.Compares))
	for _, op := range w.txn.Ops {
		keys[op.Key] = true
	}
	for _, op := range o.txn.Ops {
		if keys[op.Key] {
			return false
		}
	}
	// Both may fit the tenant's quota alone and exceed it together.
	for tenant, more := range o.held {
		if tenant != "" && more.grows() && w.held[tenant].grows() {
			return false
		}
	}
	// Deleting a tenant deletes more than the write names.
	return !w.ends(lb.KindTenant) && !o.ends(lb.KindTenant)
}

// ends reports whether an object of the kind is deleted.
func (w *write) ends(kind lb.Kind) bool {
	for r, o := range w.edited {
		if r.kind == kind && o == nil {
			return true
		}
	}
	return false
}

// include adds another write to this one.
func (w *write) include(o *write) {
	maps.Copy(w.edited, o.edited)
	maps.Copy(w.merged, o.merged)
	maps.Copy(w.keys, o.keys)
	for tenant, more := range o.held {
		w.held[tenant] = w.held[tenant].plus(more, 1)
	}
	w.txn.Compares = append(w.txn.Compares, o.txn.Compares...)
	w.txn.Ops = append(w.txn.Ops, o.txn.Ops...)
}
