package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/pki"
)

type syncStream = connect.BidiStreamForClient[apiv1.NodeReport, apiv1.PlanUpdate]

// stream opens the node's stream and runs it until it ends; the error is the reason.
func (l *loop) stream(ctx context.Context) error {
	conn, err := l.reach(ctx)
	if err != nil {
		return fmt.Errorf("open stream: %w", err)
	}
	defer conn.Close()
	client := clientOn(conn, l.managers.present, len(l.managers.list(l.learnt())) == 1)
	defer client.close()
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := client.Sync(sctx)
	// HTTP/2 does not check the context while it waits for the next report; closing the request
	// wakes it.
	defer context.AfterFunc(sctx, func() { s.CloseRequest() })()
	if l.o.Leases != nil {
		l.o.Leases.Begin()
	}
	if l.o.Loads != nil {
		l.o.Loads.Begin()
	}
	if err := s.Send(&apiv1.NodeReport{Hello: l.hello(), Epoch: l.epoch()}); err != nil {
		// The cause of a failed send is the error that Receive returns.
		if _, cause := s.Receive(); cause != nil {
			err = cause
		}
		return fmt.Errorf("open stream: %w", err)
	}
	questions := make(chan question, questionQueue)
	answers := make(chan *apiv1.NodeReport)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { l.reportAll(sctx, s, answers) })
	wg.Go(func() { l.answerAll(sctx, questions, answers) })
	// before followCAs may replace the credentials
	renewIn := l.creds.renewAt().Sub(l.o.Clock.Now())
	wg.Go(func() { l.followCAs(sctx) })
	wg.Go(func() { l.endAfter(sctx, renewIn, cancel) })
	return l.listen(s, questions)
}

// joinAfresh gets a new certificate if the manager refused the current one and the token file has a
// valid token.
func (l *loop) joinAfresh(ctx context.Context, refusal error) {
	code := connect.CodeOf(refusal)
	byTLS := refusedByTLS(refusal)
	if code != connect.CodePermissionDenied && code != connect.CodeUnauthenticated && !byTLS {
		return
	}
	t, err := readToken(l.o.TokenFile)
	if err != nil || byTLS && t.String() == l.deadToken {
		return
	}
	creds, err := join(ctx, &l.o, l.managers.present, joinTLS(t), t.String(), l.creds)
	if err != nil {
		if connect.CodeOf(err) == connect.CodePermissionDenied || errors.Is(err, pki.ErrOtherCA) {
			l.deadToken = t.String()
		}
		l.o.Log.Warn("cannot join afresh", "error", err)
		return
	}
	l.use(creds)
}

// endAfter ends the stream when the certificate is due for renewal; the next connection renews it.
func (l *loop) endAfter(ctx context.Context, left time.Duration, end context.CancelFunc) {
	if left <= 0 {
		left = time.Hour // the last attempt failed
	}
	select {
	case <-l.o.Clock.After(left):
		end()
	case <-ctx.Done():
	}
}

func (l *loop) hello() *apiv1.Hello {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &apiv1.Hello{Name: l.o.Name, Role: l.o.Role, Version: l.o.Version, HaveRevision: l.applied.revision, Epoch: l.wanted.epoch, Opened: l.o.Clock.Now().UnixNano(), TakesLoad: l.o.HeardLoads != nil}
}

func (l *loop) epoch() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wanted.epoch
}

// listen processes updates and requests.
func (l *loop) listen(s *syncStream, questions chan<- question) error {
	defer l.setConnected(false)
	// behind: the manager's state is older than this node's plan. The next updates are changes of a
	// plan that was refused.
	behind := false
	for {
		up, err := s.Receive()
		if err != nil {
			return fmt.Errorf("stream: %w", err)
		}
		l.setConnected(true)
		l.noteLockedOut(nil)
		if up.GetTrace() != nil || up.GetFlows() != nil || up.GetHealthOf() != nil || up.GetSnatWords() != nil {
			select {
			case questions <- question{up, l.o.Clock.Now()}:
			default: // the manager's request times out
			}
			continue
		}
		if ofLeases(up) {
			if l.o.Leases != nil {
				if err := l.o.Leases.Hear(up); err != nil {
					return fmt.Errorf("stream: %w", err)
				}
			}
			continue
		}
		if in := up.GetLoad(); in != nil {
			if err := l.heardLoad(in); err != nil {
				return fmt.Errorf("stream: %w", err)
			}
			continue
		}
		if o := up.GetOthers(); o != nil {
			if err := l.othersSay(o); err != nil {
				return err
			}
			continue
		}
		if h := up.GetHealth(); h != nil {
			// They have no revision and no epoch: verdicts that arrive with a refused plan are
			// valid, too.
			if err := l.heard(h); err != nil {
				return err
			}
			if !up.GetSnapshot() {
				continue
			}
		}
		if behind && !up.GetSnapshot() && l.fresh(up) {
			return errors.New("stream: the manager has caught up with this node: it is asked for the whole plan")
		}
		if err := l.take(up); isStale(err) {
			// The report informs the manager that its epoch is over. The stream stays up for its
			// requests.
			l.o.Log.Error("refuses a plan", "error", err)
			behind = true
			continue
		} else if err != nil {
			return err
		}
		if up.GetSnapshot() {
			l.o.Log.Info("has a plan from the manager", "manager", l.managers.present, "revision", up.GetRevision(), "epoch", up.GetEpoch())
			if len(up.GetUpsert()) == 0 {
				l.o.Log.Warn("the plan is empty: there is no Node of this name and role; apply one", "node", l.o.Name, "role", l.o.Role)
			}
		}
	}
}

// fresh reports whether an update is not older than the node's plan.
func (l *loop) fresh(up *apiv1.PlanUpdate) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wanted.refuses(up) == nil
}

// statusPace is the delay between a change and its status report. A status of many members costs
// the node, its manager and the leader far more than its cause, and changes come in bursts. Reports
// that a client waits for are sent without a status.
const statusPace = 150 * time.Millisecond

// askPace is the time between two requests for the reports of others while the node considers
// itself isolated, because those reports change, too.
const askPace = 2 * time.Second

// reportAll sends reports, responses and requests; it is the only sender while the stream is up.
// The applied revision, results of checks, responses and requests are sent immediately; a status
// follows when something changed, and every StatusInterval.
func (l *loop) reportAll(ctx context.Context, s *syncStream, answers <-chan *apiv1.NodeReport) {
	tick := l.o.Clock.After(l.o.StatusInterval)
	var judged <-chan struct{}
	if l.o.Verdicts != nil {
		if s.Send(l.verdicts(true)) != nil {
			return
		}
		judged = l.o.Verdicts.Changed()
	}
	var leases <-chan struct{}
	if l.o.Leases != nil {
		leases = l.o.Leases.Says()
	}
	var loaded <-chan struct{}
	if l.o.Loads != nil {
		loaded = l.o.Loads.Changed()
	}
	var suspicions <-chan struct{}
	askAgain := l.o.Clock.After(0) // a stream begins with the requests that are still open
	if l.o.Suspicion != nil {
		suspicions = l.o.Suspicion.Suspicions()
	}
	var last said
	var due <-chan time.Time // the next status; nil: nothing changed since the last one
	for {
		var r *apiv1.NodeReport
		select {
		case <-judged:
			r = l.verdicts(false)
		case <-leases:
			if r = l.ack(); !l.o.Leases.Say(r) {
				continue
			}
		case <-loaded:
			if r = l.load(); r == nil {
				continue
			}
		case <-l.obeys:
			r = l.ack()
		case <-suspicions:
			askAgain = l.o.Clock.After(0)
			continue
		case <-askAgain:
			if r = l.ask(); r == nil {
				askAgain = nil
				continue
			}
			askAgain = l.o.Clock.After(askPace)
		case r = <-answers:
			l.acknowledge(r)
		case <-l.report:
			if due == nil && last.report != nil {
				due = l.o.Clock.After(statusPace)
			}
			if due != nil {
				continue
			}
			r = l.nodeReport()
		case <-due:
			r = l.nodeReport()
		case <-tick:
			tick = l.o.Clock.After(l.o.StatusInterval)
			r = l.nodeReport()
			if l.o.Quiet && last.covers(r, l.o.Clock.Now()) {
				continue
			}
		case <-ctx.Done():
			return
		}
		if s.Send(r) != nil {
			return // Receive returns the error
		}
		if r.GetStatus() != nil {
			last, due = said{r, l.o.Clock.Now()}, nil
		}
	}
}

// ack returns a report of the applied revision.
func (l *loop) ack() *apiv1.NodeReport {
	r := &apiv1.NodeReport{}
	l.acknowledge(r)
	return r
}

// acknowledge sets the revision and the epoch of a report.
func (l *loop) acknowledge(r *apiv1.NodeReport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.SyncedRevision, r.Epoch = l.syncedLocked(), l.wanted.epoch
}

// syncedLocked returns the revision that the node applied.
func (l *loop) syncedLocked() int64 {
	if l.applied.epoch < l.wanted.epoch && l.applied.revision > l.wanted.revision {
		// the managers' state was restored, and revisions began anew: the applied plan has none of
		// them
		return 0
	}
	return l.applied.revision
}

// verdicts returns a report of the results of this node's checks, without anything that takes long
// to compute.
func (l *loop) verdicts(all bool) *apiv1.NodeReport {
	h := convert.ToHealth(l.o.Verdicts.Take(all))
	r := l.ack()
	r.Health = h
	return r
}

// heard passes on the hosts' verdicts.
func (l *loop) heard(h *apiv1.HealthReport) error {
	if l.o.Heard == nil {
		return nil
	}
	v, err := convert.FromHealth(h)
	if err != nil {
		return fmt.Errorf("verdicts of hosts: %w", err)
	}
	l.o.Heard(v)
	return nil
}

// ask returns a request for the reports of others; nil: the node does not consider itself isolated.
func (l *loop) ask() *apiv1.NodeReport {
	if l.o.Suspicion == nil || l.o.Suspicion.Suspect().IsZero() {
		return nil
	}
	r := l.ack()
	r.AskHealth = true
	return r
}

// othersSay passes on the reports of others.
func (l *loop) othersSay(o *apiv1.HealthReport) error {
	if l.o.Suspicion == nil {
		return nil
	}
	v, err := convert.FromHealth(o)
	if err != nil {
		return fmt.Errorf("verdicts of others: %w", err)
	}
	v.Full = true
	l.o.Suspicion.OthersSay(v)
	return nil
}

// said is the last report of a stream with a status.
type said struct {
	report *apiv1.NodeReport
	at     time.Time
}

// covers reports whether a report equals the last one, which was sent less than QuietFor ago.
func (s said) covers(r *apiv1.NodeReport, now time.Time) bool {
	return s.report != nil && now.Sub(s.at) < QuietFor && proto.Equal(s.report, r)
}

// nodeReport returns the newest report, with a status.
func (l *loop) nodeReport() *apiv1.NodeReport {
	st := l.h.Status()
	if st == nil {
		st = &apiv1.NodeStatus{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	synced := l.syncedLocked()
	st.Name, st.Role, st.Version, st.SyncedRevision = l.o.Name, l.o.Role, l.o.Version, synced
	agent := &apiv1.ProcessBuild{Process: "agent", Version: l.o.Version, Commit: l.o.Commit, Pid: uint32(os.Getpid())}
	st.Processes = append([]*apiv1.ProcessBuild{agent}, st.Processes...)
	if l.fault != "" {
		st.Error = l.fault
	}
	st.Trust, st.RotatesRings = l.trustLocked(), true
	return &apiv1.NodeReport{SyncedRevision: synced, Epoch: l.wanted.epoch, Status: st}
}
