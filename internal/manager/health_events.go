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
	// healthSettle is how long a new leader waits before it reports health. Nodes connect to it
	// within a second, and until all have, the connected ones do not represent the others.
	healthSettle = 5 * time.Second
	// healthPace is the minimum time between two accounts of an endpoint. A backend that flips and
	// returns in between is not reported.
	healthPace = time.Second
	// maxNamed is the number of backends that an event names.
	maxNamed = 5
	// maxChanges is the number of backends whose changes an event lists, maxChangeWords the maximum
	// size of a node's reason there, in bytes.
	maxChanges, maxChangeWords = 4096, 200
)

// healthEvents reports the effects of health on endpoints. An event states the resulting condition
// of a whole endpoint, so that there is one account of it however many backends flip, and a new
// leader can see that it was reported.
type healthEvents struct {
	m *Manager

	mu sync.Mutex
	// stirred holds the endpoints to check.
	stirred map[lb.EndpointKey]bool
	wake    chan struct{} // room for one

	// accounts has the last account in this term of each endpoint. It belongs to the goroutine of
	// the controller.
	accounts map[lb.EndpointKey]account
}

// account is the effect of health on an endpoint.
type account struct {
	// down holds the dead backends; nil if there are none.
	down map[lb.BackendKey]bool
	// dead: no backend that takes flows is healthy. backups: backups take flows.
	dead, backups bool
}

func newHealthEvents(m *Manager) *healthEvents {
	return &healthEvents{m: m, stirred: map[lb.EndpointKey]bool{}, wake: make(chan struct{}, 1), accounts: map[lb.EndpointKey]account{}}
}

// stir adds endpoints whose health or members changed to those to check.
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

// run reports changes until ctx ends.
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

// round checks every stirred endpoint.
func (h *healthEvents) round() {
	for _, key := range h.take() {
		h.look(key)
	}
}

// look reports the changes of an endpoint.
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
	// Conditions that an earlier leader reported may still hold for backends without a health
	// report.
	if !again && unknown && (before.dead || before.backups || len(before.down) > 0) {
		return
	}
	h.accounts[key] = now
	teller{m, key, own, &st}.tell(before, now)
}

// inherited returns the account that an earlier leader last reported for an endpoint. Dead backends
// that its event did not name count if they are still dead.
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

// next returns the present account of an endpoint. A backend without a health report keeps its
// state; unknown reports whether there is one.
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
	if working == 0 { // all drain: health does not matter
		now.dead = a.dead
	}
	now.backups = health.Decide(health.Decision{Backup: a.backups}, tally, health.Policy{BackupBelow: ep.BackupBelow, FailOpen: ep.FailOpen}).Backup
	return now, unknown
}

// teller emits the events of an endpoint.
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

// change returns the change of a member's health, with the node and the reason behind it.
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

// clipWords bounds the reason of a change, because a node's error may be long.
func clipWords(s string) string {
	if len(s) <= maxChangeWords {
		return s
	}
	return strings.ToValidUTF8(s[:maxChangeWords], "") + "…"
}

// tell emits events for the difference between two accounts.
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

// endpointText returns the name of an endpoint in events.
func endpointText(k lb.EndpointKey) string {
	return fmt.Sprintf("%s %s/%s", k.VIP, k.Protocol, lb.PortsText(k.Port, k.PortEnd))
}

func backendText(b lb.BackendKey) string {
	if b.Port == 0 {
		return b.DIP.String()
	}
	return netip.AddrPortFrom(b.DIP, b.Port).String()
}

// names lists backends, the first maxNamed by name. downIn parses the list.
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

// downIn parses the backends that a message reports down. more reports whether the message counts
// others without their names.
func downIn(message string) (named []string, more bool) {
	_, list, found := strings.Cut(message, " down: ")
	if !found {
		return nil, false
	}
	list, _, _ = strings.Cut(list, ";")
	list, _, more = strings.Cut(list, " and ")
	return strings.Split(list, ", "), more
}
