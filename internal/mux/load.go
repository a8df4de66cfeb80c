package mux

import (
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
)

// loads holds the member loads that hosts report. They are in memory only, because the manager's
// stream begins with all of them.
type loads struct {
	mu    sync.Mutex
	table *load.Table
}

var _ load.Reader = (*loads)(nil)

// Of implements load.Reader.
func (l *loads) Of(k load.Key, now time.Time) (load.Load, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.table.Of(k, now)
}

// told returns the newest load of a member and its age.
func (l *loads) told(k load.Key, now time.Time) (load.Load, time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of, at, known := l.table.Told(k, now)
	return of, now.Sub(at), known
}

// HeardLoads stores loads that hosts reported.
func (a *Agent) HeardLoads(members []load.Member) {
	a.loads.mu.Lock()
	defer a.loads.mu.Unlock()
	a.loads.table.Put(members, "", a.o.Clock.Now())
}

// Loads returns the reader for schedulers.
func (a *Agent) Loads() load.Reader { return &a.loads }

// LoadOf returns the load of member id of an endpoint; false: there is none, or it is too old.
func (a *Agent) LoadOf(e lb.EndpointKey, id uint16) (load.Load, bool) {
	return a.loads.Of(load.Key{Endpoint: e, Member: id}, a.o.Clock.Now())
}
