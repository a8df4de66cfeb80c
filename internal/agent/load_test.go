package agent

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/notify"
)

// loadsTwin provides loads that a test sets.
type loadsTwin struct {
	changed chan struct{}

	mu    sync.Mutex
	begun int
	news  []load.Member
}

func (l *loadsTwin) Changed() <-chan struct{} { return l.changed }

func (l *loadsTwin) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun++
	notify.Send(l.changed)
}

func (l *loadsTwin) set(news ...load.Member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.news = news
	notify.Send(l.changed)
}

func (l *loadsTwin) Take() []load.Member {
	l.mu.Lock()
	defer l.mu.Unlock()
	news := l.news
	l.news = nil
	return news
}

func memberLoad(id uint16, connections uint32) load.Member {
	key := lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}
	return load.Member{Key: load.Key{Endpoint: key, Member: id}, Load: load.Load{Connections: connections, Has: load.HasConnections}}
}

// TestLoadsAreToldAtOnce: loads are reported without a status and without delay. A stream begins
// with all loads. No report is sent if there are none.
func TestLoadsAreToldAtOnce(t *testing.T) {
	m := newManagerTwin(t)
	loads := &loadsTwin{changed: make(chan struct{}, 1)}
	m.run(Options{Clock: clock.NewFake(time.Now()), StatusInterval: time.Hour, Loads: loads}, obedient{})
	s := m.accept()
	for connections := range uint32(3) {
		loads.set() // nothing
		loads.set(memberLoad(1, connections))
		r := s.report()
		got, err := convert.FromLoadReport(r.GetLoad())
		if err != nil || r.GetStatus() != nil || !slices.Equal(got, []load.Member{memberLoad(1, connections)}) {
			t.Fatalf("report is %v (%v), want the load with %d connections and no status", r, err, connections)
		}
	}
	loads.mu.Lock()
	defer loads.mu.Unlock()
	if loads.begun != 1 {
		t.Errorf("%d streams began", loads.begun)
	}
}

// TestLoadsAreHeard: a mux receives the loads that hosts report, also from a manager whose plan it
// refuses, and its hello contains that it takes loads.
func TestLoadsAreHeard(t *testing.T) {
	m := newManagerTwin(t)
	heard := make(chan []load.Member, 8)
	m.run(Options{Clock: clock.NewFake(time.Now()), StatusInterval: time.Hour, HeardLoads: func(l []load.Member) { heard <- l }}, obedient{})
	s := m.accept()
	s.ups <- nodeUpdate(7, 2, true)
	s.ups <- nodeUpdate(8, 1, false) // of a previous epoch
	want := []load.Member{memberLoad(1, 5), memberLoad(2, 6)}
	s.ups <- &apiv1.PlanUpdate{Load: convert.ToLoadReport(want)}
	if got := <-heard; !slices.Equal(got, want) {
		t.Errorf("heard %v, want %v", got, want)
	}
}
