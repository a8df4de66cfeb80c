package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
)

// loop is the state of a running agent.
type loop struct {
	o        Options
	h        Handler
	managers managers // of the connecting goroutine

	mu sync.Mutex
	// creds is written by the connecting goroutine, which reads it without mu, and while a stream
	// is up by followCAs.
	creds *credentials
	// trustFault is why the node cannot follow a replacement of the CA. lockedOut is why no manager
	// accepts it. Both are empty if there is no fault.
	trustFault, lockedOut string
	// deadToken is the token that was refused for a new join.
	deadToken string
	// wanted is the newest plan received; applied is the newest that the data plane has.
	wanted, applied *folded
	// fault is why wanted is not applied, or why an update was refused.
	fault string
	// connected: the stream received something. current is when the plan was last known to be the
	// newest.
	connected bool
	current   time.Time
	// work wakes the applying goroutine, keep the writing one, and obeys and report the reporting
	// one: obeys when the applied plan changed, report when the status may have. Each has room for
	// one.
	work, keep, obeys, report chan struct{}
	// cas wakes followCAs; room for one.
	cas chan struct{}

	// kept is the plan on disk, synced the last one that survives a loss of power. They belong to
	// the writing goroutine.
	kept, synced *folded
}

// Run keeps the node's handler at the newest plan until ctx ends, and then returns nil. It returns
// an error only if it cannot continue: wrong options, an unusable state directory, or a join that
// is refused while there is no plan. With a stored plan it calls Apply before it connects to the
// manager.
//
// Apply is never called concurrently with itself; Status and Trace may be called at any time.
func Run(ctx context.Context, o Options, h Handler) error {
	if err := o.fill(); err != nil {
		return err
	}
	given, err := ParseManagers(o.Manager)
	if err != nil {
		return fmt.Errorf("agent: manager: %w", err)
	}
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	creds, err := loadCredentials(&o)
	if err != nil {
		return err
	}
	l := &loop{o: o, h: h, creds: creds, managers: managers{name: o.Name, given: given}, wanted: &folded{}, applied: &folded{}, work: make(chan struct{}, 1), keep: make(chan struct{}, 1), obeys: make(chan struct{}, 1), report: make(chan struct{}, 1), cas: make(chan struct{}, 1)}
	l.lockedOut = l.lastLockedOut()
	l.setConnected(false)
	o.Progress.follow(l)
	l.restore(ctx)
	if l.kept = l.applied; l.kept.revision == 0 {
		l.synced = l.kept
	} else {
		notify.Send(l.keep) // it may not be synced
	}
	ctx, cancel := context.WithCancel(ctx)
	var workers, keeper sync.WaitGroup
	kctx, stopKeeping := context.WithCancel(context.WithoutCancel(ctx))
	keeper.Go(func() { l.keepAll(kctx) })
	defer keeper.Wait()
	defer stopKeeping()
	defer workers.Wait()
	defer cancel()
	workers.Go(func() { l.applyAll(ctx) })
	workers.Go(func() { l.forwardNotify(ctx) })
	return l.connectAll(ctx)
}

func (o *Options) fill() error {
	for field, value := range map[string]string{"name": o.Name, "role": o.Role, "manager": o.Manager, "state directory": o.StateDir} {
		if value == "" {
			return fmt.Errorf("agent: %s: %q: must not be empty", field, value)
		}
	}
	if o.StatusInterval == 0 {
		o.StatusInterval = time.Second
	}
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// restore applies the last good plan. A plan that cannot be read does not prevent the start.
func (l *loop) restore(ctx context.Context) {
	up, err := loadPlan(l.o.StateDir)
	var f *folded
	if err == nil && up != nil {
		if f, _, err = l.wanted.with(up); err == nil {
			err = l.h.Apply(ctx, f.plan)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if f != nil {
		l.wanted = f
	}
	if err != nil {
		l.fault = "last good plan: " + err.Error()
		l.o.Log.Error("cannot use the last good plan", "error", err)
		return
	}
	if up != nil {
		l.applied = l.wanted
		l.o.Log.Info("works from the last good plan", "revision", up.GetRevision(), "epoch", up.GetEpoch())
	}
}

// connectAll connects again and again until ctx ends, each time to the next manager, and without a
// long wait until all were tried.
func (l *loop) connectAll(ctx context.Context) error {
	l.managers.next(l.learnt(), l.o.Clock.Now(), 0)
	for ctx.Err() == nil {
		began := l.o.Clock.Now()
		err := l.ensureCredentials(ctx)
		if err == nil {
			err = l.stream(ctx)
			l.noteLockedOut(err)
			l.joinAfresh(ctx, err)
		} else if l.hopeless(err) {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		now, left := l.o.Clock.Now(), l.managers.present
		l.managers.ended(now.Sub(began), err, now, rand.Float64())
		wait := l.managers.next(l.learnt(), now, rand.Float64())
		l.o.Log.Warn("no manager", "manager", left, "error", err, "next", l.managers.present, "in", wait.Round(time.Millisecond))
		select {
		case <-l.o.Clock.After(wait):
		case <-ctx.Done():
		}
	}
	return nil
}

// learnt returns the addresses of managers in the plan.
func (l *loop) learnt() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wanted.items.get(plan.NodeItem).GetNode().GetManagers()
}

// hopeless reports whether waiting cannot repair a failed join, and the node has neither
// certificate nor plan.
func (l *loop) hopeless(err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.creds != nil || l.applied.revision > 0 {
		return false
	}
	switch connect.CodeOf(err) {
	case connect.CodePermissionDenied, connect.CodeInvalidArgument, connect.CodeUnauthenticated:
		return true
	case connect.CodeUnknown:
		var ce *connect.Error
		return !errors.As(err, &ce) // our own: no token, no right to write
	}
	return false
}

// ensureCredentials joins if there is no certificate or if the token is of another cluster. It
// renews the certificate when two thirds of its lifetime have passed.
func (l *loop) ensureCredentials(ctx context.Context) error {
	if l.creds == nil || l.newCluster() {
		t, err := readToken(l.o.TokenFile)
		if err != nil {
			return err
		}
		creds, err := join(ctx, &l.o, l.managers.present, joinTLS(t), t.String(), l.creds)
		if err != nil {
			return err
		}
		if l.creds != nil && !l.creds.ofCluster(sha256.Sum256(creds.cas[0].Raw)) {
			l.forgetEpoch()
		}
		l.use(creds)
		l.o.Log.Info("joined", "manager", l.managers.present, "certificate_until", creds.cert.Leaf.NotAfter)
		return nil
	}
	if l.o.Clock.Now().Before(l.creds.renewAt()) {
		return nil
	}
	creds, err := join(ctx, &l.o, l.managers.present, l.creds.clientTLS(), "", l.creds)
	if err != nil {
		l.o.Log.Warn("cannot renew the certificate", "error", err)
		return nil
	}
	l.use(creds)
	return nil
}

// use sets the credentials of the next connection.
func (l *loop) use(creds *credentials) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.creds = creds
}

// newCluster reports whether the token file names a CA that the node neither accepts nor accepted
// before.
func (l *loop) newCluster() bool {
	if l.o.TokenFile == "" {
		return false
	}
	t, err := readToken(l.o.TokenFile)
	return err == nil && !l.creds.ofCluster(t.CA)
}

// forgetEpoch makes the node accept the first epoch of another cluster.
func (l *loop) forgetEpoch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := *l.wanted
	w.epoch = 0
	l.wanted = &w
}

// applyAll applies the newest wanted plan. A failed plan is retried at growing intervals, because
// the cause may pass before the next change.
func (l *loop) applyAll(ctx context.Context) {
	var retries backoff
	var again <-chan time.Time
	for {
		select {
		case <-l.work:
		case <-again:
		case <-ctx.Done():
			return
		}
		again = nil
		if err := l.applyWanted(ctx); err == nil {
			retries.reset()
		} else if ctx.Err() == nil {
			again = l.o.Clock.After(retries.wait())
		}
	}
}

func (l *loop) applyWanted(ctx context.Context) error {
	l.mu.Lock()
	f := l.wanted
	l.mu.Unlock()
	err := l.h.Apply(ctx, f.plan)
	if err != nil && ctx.Err() != nil {
		return err
	}
	l.mu.Lock()
	l.noteCurrentLocked()
	same := err != nil && l.fault == err.Error()
	l.fault = ""
	if err != nil {
		l.fault = err.Error()
	} else {
		l.applied = f
	}
	l.mu.Unlock()
	if same {
		return err // reported already
	}
	notify.Send(l.obeys)
	notify.Send(l.report)
	if err != nil {
		l.o.Log.Error("cannot apply the plan", "revision", f.revision, "error", err)
		return err
	}
	notify.Send(l.keep)
	return nil
}

// forwardNotify turns the handler's notifications into reports.
func (l *loop) forwardNotify(ctx context.Context) {
	for {
		select {
		case _, ok := <-l.o.Notify:
			if !ok {
				return
			}
			notify.Send(l.report)
		case <-ctx.Done():
			return
		}
	}
}

// take folds an update. The error ends the stream.
func (l *loop) take(up *apiv1.PlanUpdate) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteCurrentLocked()
	next, changed, err := l.wanted.with(up)
	if err != nil {
		l.fault = err.Error()
		notify.Send(l.obeys)
		notify.Send(l.report)
		return err
	}
	if caughtUp := l.applied == l.wanted; !changed && caughtUp && l.wanted.epoch == next.epoch {
		l.wanted, l.applied = next, next
		notify.Send(l.obeys)
		return nil
	}
	l.wanted = next
	notify.Send(l.work)
	notify.Send(l.cas)
	return nil
}
