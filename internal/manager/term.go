package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/store"
)

// NoLeader is what a call hears that needs a leader while there is none. Nothing was done for it: it may be repeated.
const NoLeader = "no manager leads at present"

// Why a term ends, or a call that needs the leader fails.
var (
	// ErrFenced: another manager has taken the leadership.
	ErrFenced = errors.New("another manager has taken the leadership")
	// errNoLeader: nobody does what only a leader may do.
	errNoLeader = errors.New(NoLeader)
)

// notLeading is the refusal of what only a leader may do, when nothing of it was done: another leader may be asked.
type notLeading struct{ why error }

func (e notLeading) Error() string { return e.why.Error() }

func (e notLeading) Unwrap() error { return e.why }

// unknownOutcome is the end of a write without an answer of the store.
type unknownOutcome struct{ why error }

func (e unknownOutcome) Error() string { return "whether it was done is unknown: " + e.why.Error() }

func (e unknownOutcome) Unwrap() error { return e.why }

// term is one leadership of this member. Every write in it compares the leader key, so that none lands once another
// member leads.
type term struct {
	m     *Manager
	epoch int64
	// leaderMod is the revision of the leader key in this term.
	leaderMod int64
	lease     store.LeaseID
	// ctx ends with the term; its cause says why. Duties work in it.
	ctx context.Context
	end context.CancelCauseFunc

	// writing makes the writes of this term queue up instead of conflicting.
	writing sync.Mutex
	// requests wait for writing.
	requests requests
	// issued is the latest time in a certificate of this term; writing guards it.
	issued time.Time

	mu sync.Mutex
	// renewed is when the last renewal of the lease that succeeded was asked for.
	renewed time.Time
}

type termKey struct{}

// newTerm makes a term whose lease was granted or renewed at the given time.
func newTerm(m *Manager, epoch, leaderMod int64, lease store.LeaseID, renewed time.Time) *term {
	t := &term{m: m, epoch: epoch, leaderMod: leaderMod, lease: lease, renewed: renewed}
	ctx, end := context.WithCancelCause(m.ctx)
	t.ctx, t.end = context.WithValue(ctx, termKey{}, t), end
	return t
}

// lead returns the term that ctx belongs to, as a duty's does, or else this member's present one. The error is for
// people: another member leads, or none. A term is proven before it is returned, unless its lease is known to last.
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

// present is this member's term, as far as it knows; nil when it does not lead.
func (m *Manager) present() *term {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.term
}

// hold returns nil when nobody else led up to the call: everything that was stored before is in the view.
func (t *term) hold(ctx context.Context) error {
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	// A process that was stopped, or a machine that was, finds its lease long over.
	if t.m.o.Clock.Now().Sub(t.lastRenewed()) > leaseTTL {
		return t.prove(ctx)
	}
	return nil
}

// refuse returns the refusal of a judge of the view, if it has one of the present state: what is refused is not committed, and the
// view may be old, because this member waited for long, leads no more, or has not heard of its own last write. The term's writing is locked.
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

// commit writes in the term that ctx belongs to, or in the present one. Succeeded is false when a compare of the caller's
// failed.
func (m *Manager) commit(ctx context.Context, txn store.Txn) (store.TxnResult, error) {
	t, err := m.lead(ctx)
	if err != nil {
		return store.TxnResult{}, err
	}
	return t.commit(ctx, txn)
}

// commit adds the fence to a transaction. Succeeded is false when a compare of the caller's failed.
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
			t.m.o.Log.Error("cannot work with what was stored", "revision", res.Revision, "error", err) // nor can the watch, which ends this member
		}
		t.m.followers.tellStored(txn.Ops, res.Revision)
		return res, nil
	}
	// Nothing was done, but nobody else is asked to: this process may have stood still for long, and what its caller wanted then is
	// not what the next leader should begin with.
	return res, t.prove(ctx)
}

// commitLast is commit for what a duty still has to say when the term has ended, before its lease is given up. The fence
// holds as ever.
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

// bind makes a context end with the term, too.
func (t *term) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	return endWith(ctx, t.ctx)
}

// endWith makes a context that ends with either, and of its cause.
func endWith(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { end(context.Cause(other)) })
	return ctx, func() {
		stop()
		end(nil)
	}
}

// prove reads who leads, by a linearizable read: a term that is over ends.
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

// fault is the error of a call to the store; the end of the term goes before what it caused.
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

// work does the term's duties until it ends, and gives the lease up. Nothing of the term goes on afterwards. The error is
// a failure of this member, so that another one should lead.
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
