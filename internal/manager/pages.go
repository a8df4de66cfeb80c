package manager

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/store"
)

const (
	// sweepJournals is how often old pages are deleted when nothing is written.
	sweepJournals = time.Hour
	// maxSwept bounds the pages that one transaction deletes.
	maxSwept = 1000
	// lastFlush bounds the writing of waiting entries when a term ends.
	lastFlush = 500 * time.Millisecond
)

// drain calls write when entries wait, at most once per eventPace unless a batch waits, until ctx
// ends, and once more then. write returns the time at which it must be called again; zero: when
// there are new entries.
func (f *funnel[T]) drain(ctx context.Context, o Options, write func(context.Context, time.Time) (time.Time, error)) {
	for {
		next, err := write(ctx, o.Clock.Now())
		if err != nil && ctx.Err() == nil {
			o.Log.Warn("cannot write to the journal", "error", err)
		}
		if !f.pause(ctx, o, next) {
			break
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastFlush)
	defer cancel()
	if _, err := write(last, o.Clock.Now()); err != nil {
		o.Log.Debug("what waited for the journal is lost", "error", err)
	}
}

// pause waits until write must be called again. It returns false at the end of ctx.
func (f *funnel[T]) pause(ctx context.Context, o Options, next time.Time) bool {
	select {
	case <-o.Clock.After(eventPace):
	case <-f.crowd:
	case <-ctx.Done():
		return false
	}
	wait := sweepJournals
	if !next.IsZero() {
		wait = min(wait, next.Sub(o.Clock.Now()))
	}
	select {
	case <-f.wake:
	case <-f.crowd:
	case <-o.Clock.After(wait):
	case <-ctx.Done():
		return false
	}
	return true
}

// pages writes a journal. It belongs to one goroutine.
type pages struct {
	m       *Manager
	journal *journal
	bounds  bounds
	// unsaved holds pages whose transaction failed. It may have been committed, and repeating it
	// changes nothing.
	unsaved []store.Op
	// more holds the bytes of unsaved, by class.
	more classBytes
}

// add writes pages and deletes those that exceed the bounds as a result.
func (p *pages) add(ctx context.Context, now time.Time, values ...proto.Message) error {
	for _, v := range values {
		value, err := proto.Marshal(v)
		if err != nil {
			return err
		}
		op := store.Put(pageKey(p.journal.dir, now, p.m.Epoch(), p.m.pageNumber.Add(1)), value)
		var share page
		switch v := v.(type) {
		case *apiv1.StoredAudit:
			shareOut(&share, v.GetEntries(), auditShareOf)
		case *apiv1.StoredEvents:
			shareOut(&share, v.GetEvents(), eventShareOf)
		}
		p.more[share.class] += int64(len(op.Key) + len(op.Value))
		p.unsaved = append(p.unsaved, op)
	}
	return p.flush(ctx, now)
}

// flush writes the unsaved pages, if any.
func (p *pages) flush(ctx context.Context, now time.Time) error {
	if len(p.unsaved) == 0 {
		return nil
	}
	err := p.commit(ctx, store.Txn{Ops: slices.Clone(p.unsaved)}, p.more, now)
	if err == nil {
		p.unsaved, p.more = nil, classBytes{}
	}
	return err
}

// sweep deletes pages that exceed the bounds.
func (p *pages) sweep(ctx context.Context, now time.Time) error {
	return p.commit(ctx, store.Txn{}, classBytes{}, now)
}

// commit commits t with the deletes that make room for more bytes.
func (p *pages) commit(ctx context.Context, t store.Txn, more classBytes, now time.Time) error {
	for _, key := range p.journal.excess(p.bounds, more, now, maxSwept) {
		t.Ops = append(t.Ops, store.Delete(key))
	}
	if len(t.Ops) == 0 {
		return nil
	}
	if over, _ := ctx.Value(termKey{}).(*term); over != nil && over.ctx.Err() != nil {
		return over.commitLast(ctx, t)
	}
	term, err := p.m.lead(ctx)
	if err != nil {
		return err
	}
	res, err := term.commit(ctx, t)
	if err != nil {
		return err
	}
	return term.wait(ctx, res.Revision)
}
