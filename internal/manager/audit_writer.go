package manager

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/notify"
)

// Bounds and pace of the audit log.
const (
	// DefaultAuditKeep is how long entries of the audit log are kept, as long as they have no more than auditBytes.
	DefaultAuditKeep = 90 * 24 * time.Hour
	auditBytes       = 256 << 20
	// refusedBytes bound the refusals: whoever makes many of them cannot push out who changed what.
	refusedBytes = 64 << 20
	// tenantsBytes bounds entries of role tenant. The rest of auditBytes is reserved for operators,
	// managers and nodes.
	tenantsBytes = 96 << 20
	// auditLimit bounds the refusals that wait; further ones are put together.
	auditLimit = 1024
	// auditShare bounds those of one source (an IPv6 /48), so that it hides no other's.
	auditShare = 64
	// doneLimit bounds the calls that were done and wait: 5,000 nodes may join at once.
	doneLimit = 1 << 14
	// auditBurst entries of refusals are written at once, and then one in auditPace: a million refusals cost one entry a
	// second, whoever makes them.
	auditBurst = 64
	auditPace  = time.Second
	// Equal refusals are told twice, and then one in this time with their number.
	equalRefusals     = 2
	equalRefusalsPace = 10 * time.Second
	// maxAuditText bounds what strangers can put into an entry.
	maxAuditText = 256
)

// othersRefused stands for callers when too many were refused at once.
const othersRefused = "(others)"

// auditLog is where entries without a transaction of their own wait: refusals, and calls that write nothing. A follower
// relays its entries to the leader.
type auditLog struct {
	refusals *funnel[*apiv1.AuditEntry]

	mu   sync.Mutex
	done []*apiv1.AuditEntry
	// lost counts what did not fit into done.
	lost uint32
}

func newAuditLog() *auditLog {
	return &auditLog{refusals: newFunnel(funnelRules[*apiv1.AuditEntry]{
		merge: func(old, now *apiv1.AuditEntry) *apiv1.AuditEntry {
			old.Count += now.GetCount()
			return old
		},
		overflow: func(e *apiv1.AuditEntry) (string, *apiv1.AuditEntry) {
			return othersRefused, &apiv1.AuditEntry{
				Time: e.GetTime(), Who: othersRefused, Call: e.GetCall(), Refused: "refusals of many callers", Count: e.GetCount(),
			}
		},
		group: func(e *apiv1.AuditEntry) string { return widest(e.GetFrom()).String() }, share: auditShare,
		rest: func(group string, e *apiv1.AuditEntry) (string, *apiv1.AuditEntry) {
			return othersRefused + group, &apiv1.AuditEntry{
				Time: e.GetTime(), Who: othersRefused, From: e.GetFrom(), Call: e.GetCall(), Refused: "refusals of many callers", Count: e.GetCount(),
			}
		},
		limit: auditLimit, batch: auditLimit, burst: equalRefusals, pace: equalRefusalsPace,
	})}
}

// addDone adds an entry of a call that was done.
func (l *auditLog) addDone(e *apiv1.AuditEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.done) >= doneLimit {
		l.lost++
		last := l.done[len(l.done)-1]
		last.What = []string{fmt.Sprintf("and %d calls that were too many at once", l.lost)}
		return
	}
	l.done = append(l.done, e)
	notify.Send(l.refusals.wake)
}

func (l *auditLog) takeDone() []*apiv1.AuditEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.done
	l.done, l.lost = nil, 0
	return out
}

// audited notes a call that was refused, or one that did something without a transaction of its own (for those with one
// see auditOp). It never blocks. The entry belongs to the callee: time and count may be left out.
func (m *Manager) audited(e *apiv1.AuditEntry) {
	if e.GetTime() == nil {
		e.Time = timestamppb.New(m.o.Clock.Now())
	}
	e.Count = max(1, e.GetCount())
	if e.GetRefused() == "" {
		m.auditLog.addDone(e)
		return
	}
	e.Who, e.Call, e.Refused = clipText(e.GetWho()), clipText(e.GetCall()), clipText(e.GetRefused())
	m.auditLog.refusals.put(strings.Join([]string{e.GetWho(), host(e.GetFrom()), e.GetCall(), e.GetRefused()}, "\x00"), e)
}

func clipText(s string) string {
	if len(s) <= maxAuditText {
		return strings.ToValidUTF8(s, "?")
	}
	return strings.ToValidUTF8(s[:maxAuditText], "") + "…"
}

// takeAudited returns entries that wait; followers relay them.
func (m *Manager) takeAudited() []*apiv1.AuditEntry {
	refused, _, _ := m.auditLog.refusals.take(m.o.Clock.Now(), auditBurst)
	return append(m.auditLog.takeDone(), refused...)
}

// auditDuty writes the entries that wait.
func (m *Manager) auditDuty() duty {
	w := newAuditWriter(m)
	return duty{"audit", func(ctx context.Context) error {
		m.auditLog.refusals.drain(ctx, m.o, w.write)
		return nil
	}}
}

// auditWriter writes what waits of a term's audit log. It belongs to one goroutine.
type auditWriter struct {
	pages pages
	// left is how many entries may be written now, as of at.
	left float64
	at   time.Time
}

func newAuditWriter(m *Manager) *auditWriter {
	b := bounds{bytes: auditBytes, of: classBytes{pageTenants: tenantsBytes, pageRefused: refusedBytes}, age: m.o.AuditKeep}
	return &auditWriter{pages: pages{m: m, journal: m.view.audit, bounds: b}, left: auditBurst}
}

// write writes what may be now and returns when it wants to be called again.
func (w *auditWriter) write(ctx context.Context, now time.Time) (time.Time, error) {
	m := w.pages.m
	if err := w.pages.flush(ctx, now); err != nil {
		return now.Add(eventPace), err
	}
	if passed := now.Sub(w.at); passed > 0 {
		w.left, w.at = min(auditBurst, w.left+float64(passed)/float64(auditPace)), now
	}
	done := m.auditLog.takeDone()
	refused, left, next := m.auditLog.refusals.take(now, int(w.left))
	w.left -= float64(len(refused))
	if left > 0 && next.IsZero() {
		next = now.Add(auditPace)
	}
	if len(done)+len(refused) == 0 {
		return next, w.pages.sweep(ctx, now)
	}
	for _, e := range slices.Concat(done, refused) {
		m.logAudit(e)
	}
	return next, w.pages.add(ctx, now, w.auditPages(slices.Concat(done, refused))...)
}

// auditPages splits entries into pages of one class each.
func (w *auditWriter) auditPages(entries []*apiv1.AuditEntry) (out []proto.Message) {
	for _, group := range byShare(entries, auditShareOf, w.pages.bounds.of, w.pages.journal.heldBy) {
		out = append(out, &apiv1.StoredAudit{Entries: group})
	}
	return out
}
