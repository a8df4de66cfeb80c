package mux

import (
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
)

// loads are what hosts say of the load of members. They are in memory only: an agent that starts hears all of it with its stream.
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

// told is the newest load of a member and how long ago it was told.
func (l *loads) told(k load.Key, now time.Time) (load.Load, time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of, at, known := l.table.Told(k, now)
	return of, now.Sub(at), known
}

// HeardLoads takes what hosts say of the load of their members.
func (a *Agent) HeardLoads(members []load.Member) {
	a.loads.mu.Lock()
	defer a.loads.mu.Unlock()
	a.loads.table.Put(members, "", a.o.Clock.Now())
}

// Loads is what schedulers ask.
func (a *Agent) Loads() load.Reader { return &a.loads }

// LoadOf is the load of the member with an id of an endpoint; false: nothing is known that counts.
func (a *Agent) LoadOf(e lb.EndpointKey, id uint16) (load.Load, bool) {
	return a.loads.Of(load.Key{Endpoint: e, Member: id}, a.o.Clock.Now())
}
