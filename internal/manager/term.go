package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/store"
)

// NoLeader is the error of a call that needs a leader while there is none. The call had no effect
// and may be repeated.
const NoLeader = "no manager leads at present"

// Reasons why a term ends, or a call that needs the leader fails.
var (
	// ErrFenced: another manager has acquired the leadership.
	ErrFenced = errors.New("another manager has taken the leadership")
	// errNoLeader: no manager leads.
	errNoLeader = errors.New(NoLeader)
)

// notLeading is the error of an operation that only a leader may do, if no part of it was done. The
// caller may retry at another leader.
type notLeading struct{ why error }

func (e notLeading) Error() string { return e.why.Error() }

func (e notLeading) Unwrap() error { return e.why }

// unknownOutcome is the error of a write that the store did not answer.
type unknownOutcome struct{ why error }

func (e unknownOutcome) Error() string { return "whether it was done is unknown: " + e.why.Error() }

func (e unknownOutcome) Unwrap() error { return e.why }

// term is one leadership of this member. Every write in it compares the leader key, so that none is
// stored once another member leads.
type term struct {
	m     *Manager
	epoch int64
	// leaderMod is the revision of the leader key in this term.
	leaderMod int64
	lease     store.LeaseID
	// ctx ends with the term; its cause is the reason. Controllers run in it.
	ctx context.Context
	end context.CancelCauseFunc

	// writing makes the writes of this term queue up instead of conflicting.
	writing sync.Mutex
	// requests wait for writing.
	requests requests
	// issued is the latest time in a certificate of this term. writing guards it.
	issued time.Time

	mu sync.Mutex
	// renewed is the time when the last successful renewal of the lease was sent.
	renewed time.Time
}

type termKey struct{}

// newTerm returns a term whose lease was granted or renewed at the given time.
func newTerm(m *Manager, epoch, leaderMod int64, lease store.LeaseID, renewed time.Time) *term {
	t := &term{m: m, epoch: epoch, leaderMod: leaderMod, lease: lease, renewed: renewed}
	ctx, end := context.WithCancelCause(m.ctx)
	t.ctx, t.end = context.WithValue(ctx, termKey{}, t), end
	return t
}

// lead returns the term that ctx belongs to, as a controller's does, or else this member's current
// one. Its error is readable by users: another member leads, or none. A term is proven before it is
// returned, unless its lease is certain to be valid.
func (m *Manager) lead(ctx context.Context) (*term, error) {
	t, _ := ctx.Value(termKey{}).(*term)
	if t == nil {
		t = m.present()
	}
	if t == nil {
		if l := m.view.leadership(); l.name != "" && l.name != m.o.Name {
			return nil, notLeading{fmt.Errorf("manager %s leads", l.name)}
		}
		return nil, notLeading{errNoLeader}
	}
	if err := t.hold(ctx); err != nil {
		return t, notLeading{err}
	}
	return t, nil
}

// present returns this member's term, unproven, or nil if it does not lead.
func (m *Manager) present() *term {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.term
}

// hold returns nil if no other member led up to the call. Everything stored before is then in the
// view.
func (t *term) hold(ctx context.Context) error {
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	// After a suspended process or machine resumes, its lease has long expired.
	if t.m.o.Clock.Now().Sub(t.lastRenewed()) > leaseTTL {
		return t.prove(ctx)
	}
	return nil
}

// refuse returns the error of judge, if the current state confirms it. A refused write is not
// committed, so the fence does not check the view. The view may be old, because this member waited
// for long, no longer leads, or has not yet received its own last write. So refuse catches up and
// calls judge again. The caller holds the term's writing lock.
func (t *term) refuse(ctx context.Context, judge func() error) error {
	if judge() == nil {
		return nil
	}
	if err := t.hold(ctx); err != nil {
		return err
	}
	ctx, cancel := t.bind(ctx)
	defer cancel()
	if err := t.m.catchUp(ctx); err != nil {
		return t.fault(err)
	}
	return judge()
}

// commit writes in the term that ctx belongs to, or in the current one. Succeeded is false if a
// compare of the caller's failed.
func (m *Manager) commit(ctx context.Context, txn store.Txn) (store.TxnResult, error) {
	t, err := m.lead(ctx)
	if err != nil {
		return store.TxnResult{}, err
	}
	return t.commit(ctx, txn)
}

// commit adds the fence to a transaction and stores it. Succeeded is false if a compare of the
// caller's failed.
func (t *term) commit(ctx context.Context, txn store.Txn) (store.TxnResult, error) {
	ctx, cancel := t.bind(ctx)
	defer cancel()
	txn.Compares = append(txn.Compares, store.Compare{Key: keyLeader, ModRevision: t.leaderMod})
	res, err := t.m.o.Store.Txn(ctx, txn)
	if err != nil {
		if errors.Is(err, store.ErrNoSpace) {
			return res, err // nothing of it was done
		}
		return res, unknownOutcome{t.fault(err)}
	}
	if res.Succeeded {
		if err := t.m.view.foldStored(txn.Ops, res.Revision); err != nil {
			// the watch fails, too, and ends this member
			t.m.o.Log.Error("cannot work with what was stored", "revision", res.Revision, "error", err)
		}
		t.m.followers.tellStored(txn.Ops, res.Revision)
		return res, nil
	}
	// Nothing was done, but the call is not forwarded to another leader. This process may have been
	// stopped for long, and the next leader should not begin with an old request.
	return res, t.prove(ctx)
}

// commitLast is commit for the last write of a controller after the term has ended and before its
// lease is revoked. The fence still applies.
func (t *term) commitLast(ctx context.Context, txn store.Txn) error {
	txn.Compares = append(txn.Compares, store.Compare{Key: keyLeader, ModRevision: t.leaderMod})
	res, err := t.m.o.Store.Txn(ctx, txn)
	if err == nil && !res.Succeeded {
		err = ErrFenced
	}
	return err
}

// wait blocks until the view has the revision, or the term or ctx ends.
func (t *term) wait(ctx context.Context, revision int64) error {
	ctx, cancel := t.bind(ctx)
	defer cancel()
	return t.m.view.wait(ctx, revision)
}

// bind returns a context that also ends with the term.
func (t *term) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	return endWith(ctx, t.ctx)
}

// endWith returns a context that ends when either does, with that one's cause.
func endWith(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { end(context.Cause(other)) })
	return ctx, func() {
		stop()
		end(nil)
	}
}

// prove reads the leader key with a linearizable read, and ends the term if another member leads.
func (t *term) prove(ctx context.Context) error {
	ctx, cancel := t.bind(ctx)
	defer cancel()
	kv, _, _, err := t.m.o.Store.Get(ctx, keyLeader)
	if err != nil {
		return t.fault(fmt.Errorf("prove the leadership: %w", err))
	}
	if kv.ModRevision != t.leaderMod {
		t.end(ErrFenced)
		return ErrFenced
	}
	return nil
}

// fault returns the error of a call to the store. The cause of the term's end takes precedence over
// the errors that follow from it.
func (t *term) fault(err error) error {
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	return err
}

func (t *term) lastRenewed() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.renewed
}

// work runs the term's controllers until it ends, and revokes the lease. When it returns, nothing
// of the term is running. It returns an error for a failure of this member, so that another one
// should lead.
func (t *term) work() error {
	var workers sync.WaitGroup
	workers.Go(t.keep)
	for _, d := range t.m.duties() {
		workers.Go(func() {
			if err := d.run(t.ctx); err != nil && t.ctx.Err() == nil {
				t.end(fmt.Errorf("%s: %w", d.name, err))
			}
		})
	}
	workers.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), revokeTimeout)
	defer cancel()
	if err := t.m.o.Store.Revoke(ctx, t.lease); err != nil {
		t.m.o.Log.Debug("cannot revoke the lease", "error", err)
	}
	cause := context.Cause(t.ctx)
	t.m.o.Log.Warn("leads no more", "epoch", t.epoch, "cause", cause)
	if errors.Is(cause, ErrFenced) || errors.Is(cause, store.ErrLeaseLost) {
		return nil
	}
	return cause
}
