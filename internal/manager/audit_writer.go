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
	// DefaultAuditKeep is how long entries of the audit log are kept, as long as their total size
	// is at most auditBytes.
	DefaultAuditKeep = 90 * 24 * time.Hour
	auditBytes       = 256 << 20
	// refusedBytes bounds the refusals, so that a client that causes many of them cannot evict the
	// entries of changes.
	refusedBytes = 64 << 20
	// tenantsBytes bounds entries of role tenant. The rest of auditBytes is reserved for operators,
	// managers and nodes.
	tenantsBytes = 96 << 20
	// auditLimit bounds the refusals that wait to be written. Further ones are merged into one
	// entry.
	auditLimit = 1024
	// auditShare bounds the refusals of one source (an IPv6 /48), so that it cannot hide those of
	// others.
	auditShare = 64
	// doneLimit bounds the entries of completed calls that wait, because 5,000 nodes may join
	// together.
	doneLimit = 1 << 14
	// auditBurst entries of refusals are written immediately, and then one per auditPace, so that a
	// million refusals cost one entry a second whatever their sources.
	auditBurst = 64
	auditPace  = time.Second
	// equalRefusals equal refusals are written, and then one per equalRefusalsPace with their
	// number.
	equalRefusals     = 2
	equalRefusalsPace = 10 * time.Second
	// maxAuditText bounds the text in bytes that an unauthenticated client can put into a field of
	// an entry.
	maxAuditText = 256
)

// othersRefused replaces the caller in merged entries, after too many callers were refused
// together.
const othersRefused = "(others)"

// auditLog holds the pending entries that have no transaction of their own: refusals, and calls
// that write nothing. A follower relays its entries to the leader.
type auditLog struct {
	refusals *funnel[*apiv1.AuditEntry]

	mu   sync.Mutex
	done []*apiv1.AuditEntry
	// lost counts the entries that did not fit into done.
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

// addDone adds an entry of a completed call. Beyond doneLimit the entry of the first further call
// stands for all further ones, with their number.
func (l *auditLog) addDone(e *apiv1.AuditEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.done) >= doneLimit {
		l.lost++
		if len(l.done) == doneLimit {
			l.done = append(l.done, e)
		}
		l.done[doneLimit].What = []string{fmt.Sprintf("%d calls that were too many at once", l.lost)}
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

// audited adds an entry for a call that was refused, or for one that succeeded without a
// transaction of its own (auditOp is for calls with one). It never blocks. It takes ownership of
// the entry, whose time and count may be left out.
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

// takeAudited removes and returns the pending entries, for a follower to relay.
func (m *Manager) takeAudited() []*apiv1.AuditEntry {
	refused, _, _ := m.auditLog.refusals.take(m.o.Clock.Now(), auditBurst)
	return append(m.auditLog.takeDone(), refused...)
}

// auditDuty returns the controller that writes the pending entries.
func (m *Manager) auditDuty() duty {
	w := newAuditWriter(m)
	return duty{"audit", func(ctx context.Context) error {
		m.auditLog.refusals.drain(ctx, m.o, w.write)
		return nil
	}}
}

// auditWriter writes the pending entries of a term's audit log. It belongs to one goroutine.
type auditWriter struct {
	pages pages
	// left is the number of refusals that may be written now, as of at.
	left float64
	at   time.Time
}

func newAuditWriter(m *Manager) *auditWriter {
	b := bounds{bytes: auditBytes, of: classBytes{pageTenants: tenantsBytes, pageRefused: refusedBytes}, age: m.o.AuditKeep}
	return &auditWriter{pages: pages{m: m, journal: m.view.audit, bounds: b}, left: auditBurst}
}

// write writes the pending entries that the pace allows, and returns the time of the next call.
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
