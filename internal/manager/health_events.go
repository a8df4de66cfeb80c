package manager

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
)

const (
	// healthSettle is how long a new leader waits before it tells of health: nodes reach it within a second, and until
	// all have, those that are there do not speak for the others.
	healthSettle = 5 * time.Second
	// healthPace is the least time between two accounts of an endpoint: what flips in between and back is not told.
	healthPace = time.Second
	// maxNamed is how many backends an event names.
	maxNamed = 5
	// maxChanges is of how many backends an event tells one by one, maxChangeWords how many bytes a node's words may have there.
	maxChanges, maxChangeWords = 4096, 200
)

// healthEvents tells what health does to endpoints. An event says what is so afterwards, for all of an endpoint, so that
// there is one account of it however many backends flip, and a new leader can see that it was told.
type healthEvents struct {
	m *Manager

	mu sync.Mutex
	// stirred are endpoints to look at.
	stirred map[lb.EndpointKey]bool
	wake    chan struct{} // room for one

	// accounts belongs to the goroutine of the duty: the last one in this term of each endpoint.
	accounts map[lb.EndpointKey]account
}

// account is what health means for an endpoint.
type account struct {
	// down are the dead backends; nil for none.
	down map[lb.BackendKey]bool
	// dead: no backend that takes flows is healthy. backups: backups take flows.
	dead, backups bool
}

func newHealthEvents(m *Manager) *healthEvents {
	return &healthEvents{m: m, stirred: map[lb.EndpointKey]bool{}, wake: make(chan struct{}, 1), accounts: map[lb.EndpointKey]account{}}
}

// stir notes endpoints whose health or members changed.
func (h *healthEvents) stir(keys map[lb.EndpointKey]bool) {
	if len(keys) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.Copy(h.stirred, keys)
	notify.Send(h.wake)
}

func (h *healthEvents) take() []lb.EndpointKey {
	h.mu.Lock()
	defer h.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(h.stirred), plan.CompareKeys)
	clear(h.stirred)
	return keys
}

// run tells until ctx ends.
func (h *healthEvents) run(ctx context.Context) {
	clear(h.accounts) // another member may have led since
	for pause := healthSettle; ; pause = healthPace {
		select {
		case <-h.m.o.Clock.After(pause):
		case <-ctx.Done():
			return
		}
		select {
		case <-h.wake:
		case <-ctx.Done():
			return
		}
		h.round()
	}
}

// round looks at every endpoint that was stirred.
func (h *healthEvents) round() {
	for _, key := range h.take() {
		h.look(key)
	}
}

// look tells what is new of an endpoint.
func (h *healthEvents) look(key lb.EndpointKey) {
	m := h.m
	m.view.mu.RLock()
	st, own := m.view.state.Endpoints[key], m.view.owners[key]
	m.view.mu.RUnlock()
	if own.ep == nil {
		delete(h.accounts, key)
		return
	}
	before, again := h.accounts[key]
	if !again {
		before = h.inherited(key, own, &st)
	}
	now, unknown := before.next(&st, own.ep, m.opinions.heard(key))
	// What an earlier leader told of backends of which nobody speaks yet may still be so.
	if !again && unknown && (before.dead || before.backups || len(before.down) > 0) {
		return
	}
	h.accounts[key] = now
	teller{m, key, own, &st}.tell(before, now)
}

// inherited is what an earlier leader told last of an endpoint. Of the dead backends that it did not name those count
// that still are dead.
func (h *healthEvents) inherited(key lb.EndpointKey, own owner, st *plan.EndpointState) account {
	part, heard := endpointText(key), h.m.opinions.heard(key)
	last := func(l latch) tidings { return h.m.events.last(string(lb.KindService), own.svc.Name, l, part) }
	out := account{dead: last(latchService).reason == reasonEndpointDown, backups: last(latchBackups).reason == reasonBackupsInUse}
	named, more := downIn(last(latchHealth).message)
	for _, m := range st.Members {
		if slices.Contains(named, backendText(m.Backend)) || more && heard(m.ID).Health == plan.HeardDead {
			out.fall(m.Backend)
		}
	}
	return out
}

func (a *account) fall(b lb.BackendKey) {
	if a.down == nil {
		a.down = map[lb.BackendKey]bool{}
	}
	a.down[b] = true
}

// next is the account of an endpoint now. A backend of which nobody speaks is as it was; unknown tells that there is one.
func (a account) next(st *plan.EndpointState, ep *lb.Endpoint, heard func(uint16) plan.Heard) (now account, unknown bool) {
	var tally health.Tally
	working, serving := 0, 0
	for _, m := range st.Members {
		said := heard(m.ID).Health
		unknown = unknown || said == plan.HeardNothing
		down := said == plan.HeardDead || said == plan.HeardNothing && (m.Down || a.down[m.Backend])
		if down {
			now.fall(m.Backend)
		}
		if m.Weight > 0 {
			working++
			if !down {
				serving++
			}
		}
		tally.Add(health.Standing{Weight: m.Weight, Backup: m.Backup, Alive: !down, Asked: said != plan.HeardNothing})
	}
	now.dead = serving == 0
	if working == 0 { // all drain: health has nothing to say
		now.dead = a.dead
	}
	now.backups = health.Decide(health.Decision{Backup: a.backups}, tally, health.Policy{BackupBelow: ep.BackupBelow, FailOpen: ep.FailOpen}).Backup
	return now, unknown
}

// teller makes events of an endpoint.
type teller struct {
	m   *Manager
	key lb.EndpointKey
	own owner
	st  *plan.EndpointState
}

func (t teller) event(reason string, count int, changes []*apiv1.HealthChange, format string, args ...any) {
	t.m.event(&apiv1.Event{
		Kind: string(lb.KindService), Name: t.own.svc.Name, Tenant: t.own.svc.Tenant, Reason: reason, Count: uint32(count),
		Message: endpointText(t.key) + ": " + fmt.Sprintf(format, args...), Changes: changes,
	})
}

// change is what became of a member, and by whose word.
func (t teller) change(m *plan.MemberState, dead bool) *apiv1.HealthChange {
	c := &apiv1.HealthChange{Dip: m.Backend.DIP.String(), DipPort: uint32(m.Backend.Port), Verdict: convert.Healthy}
	if dead {
		c.Verdict = convert.Unhealthy
	}
	at := t.m.o.Clock.Now()
	if w, known := t.m.opinions.because(t.key, m.ID, dead); known {
		at, c.Node, c.Words = w.at, w.mux, clipWords(w.words)
	}
	c.Time = timestamppb.New(at)
	return c
}

// clipWords bounds the words of a change: of a node's error they may be long.
func clipWords(s string) string {
	if len(s) <= maxChangeWords {
		return s
	}
	return strings.ToValidUTF8(s[:maxChangeWords], "") + "…"
}

// tell tells the difference between two accounts.
func (t teller) tell(before, now account) {
	var fell, rose []*apiv1.HealthChange
	for i := range t.st.Members {
		switch m := &t.st.Members[i]; {
		case now.down[m.Backend] && !before.down[m.Backend]:
			fell = append(fell, t.change(m, true))
		case !now.down[m.Backend] && before.down[m.Backend]:
			rose = append(rose, t.change(m, false))
		}
	}
	all, down := len(t.st.Members), len(now.down)
	said := fmt.Sprintf("all %d backends healthy", all)
	if down > 0 {
		said = fmt.Sprintf("%d of %d backends down: %s; %d healthy", down, all, names(now.down), all-down)
	}
	if len(rose) > 0 {
		t.event(reasonBackendUp, len(rose), rose[max(0, len(rose)-maxChanges):], "%s", said)
	}
	if len(fell) > 0 {
		t.event(reasonBackendDown, len(fell), fell[max(0, len(fell)-maxChanges):], "%s", said)
	}
	if now.dead != before.dead {
		t.tellDead(now)
	}
	switch {
	case now.backups && !before.backups:
		t.event(reasonBackupsInUse, 1, nil, "fewer than %d %% of its weight are healthy: backups take flows", t.own.ep.BackupBelow)
	case before.backups && !now.backups:
		t.event(reasonBackupsIdle, 1, nil, "backups take no new flows any more")
	}
}

func (t teller) tellDead(now account) {
	switch {
	case !now.dead:
		t.event(reasonEndpointUp, 1, nil, "it has a healthy backend again")
	case t.own.ep.FailOpen:
		t.event(reasonEndpointDown, 1, nil, "it has no healthy backend left and fails open: flows go to backends that are down")
	default:
		t.event(reasonEndpointDown, 1, nil, "it has no healthy backend left")
	}
}

// endpointText is how events call an endpoint.
func endpointText(k lb.EndpointKey) string {
	return fmt.Sprintf("%s %s/%s", k.VIP, k.Protocol, lb.PortsText(k.Port, k.PortEnd))
}

func backendText(b lb.BackendKey) string {
	if b.Port == 0 {
		return b.DIP.String()
	}
	return netip.AddrPortFrom(b.DIP, b.Port).String()
}

// names lists backends, the first few by name; downIn reads it.
func names(set map[lb.BackendKey]bool) string {
	out := make([]string, 0, len(set))
	for b := range set {
		out = append(out, backendText(b))
	}
	slices.Sort(out)
	if more := len(out) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(out[:maxNamed], ", "), more)
	}
	return strings.Join(out, ", ")
}

// downIn reads the backends that a message calls down; more: there are others, too.
func downIn(message string) (named []string, more bool) {
	_, list, found := strings.Cut(message, " down: ")
	if !found {
		return nil, false
	}
	list, _, _ = strings.Cut(list, ";")
	list, _, more = strings.Cut(list, " and ")
	return strings.Split(list, ", "), more
}
