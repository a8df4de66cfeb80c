package manager

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
)

// DefaultReplaceAfter is longer than a restart of a mux, which keeps its routes, and of the
// managers, because a new placement moves flows. Routers stop using a dead mux long before.
const DefaultReplaceAfter = 60 * time.Second

const (
	// placePace is the minimum time between two writes. VIPs without a serving mux do not wait for
	// it.
	placePace = time.Second
	// placeLook is the interval at which muxes' reports are checked, placeLookMoving the interval
	// while VIPs move.
	placeLook       = time.Second
	placeLookMoving = 100 * time.Millisecond
	// placeRetry is the wait after a failed write.
	placeRetry = time.Second
)

// errPlacementConflict reports a concurrent write. The places must be computed again.
var errPlacementConflict = errors.New("too many writes at once")

// placement assigns VIPs to muxes, and moves them so that a mux gives one up only after others have
// it.
type placement struct {
	m *Manager
	// began is the start of this term's placement. The muxes' state before it is unknown.
	began  time.Time
	placer *place.Placer
	// muxes holds the placer's input for each mux, seen its last report.
	muxes map[string]place.Mux
	seen  map[string]*seenMux
	// vips holds the VIPs of all services, services the VIPs of each service when it was last read.
	vips     map[place.Key]wantedVIP
	placed   map[place.Key]bool // VIPs that the placer has
	services map[string][]place.Key
	// every is the number of VIPs on every mux, byLoad the number of VIPs placed by load.
	every, byLoad int
	loads         loads
	moves         map[place.Key]*move
	// todo holds VIPs whose place may differ from the stored one. moved reports whether the
	// placer's input changed.
	todo  map[place.Key]bool
	moved bool
	// wrote is the time of the last write.
	wrote time.Time
	// problems and overloaded hold the reported problems and overloaded muxes.
	problems   map[place.Key]place.Problem
	overloaded []string

	mu sync.Mutex
	// changed holds objects to read again.
	changed map[ref]bool
	wake    chan struct{} // room for one
}

// wantedVIP is a VIP with the placement that its service requests.
type wantedVIP struct {
	service, tenant string
	place.VIP
}

func newPlacement(m *Manager) *placement {
	return &placement{
		m: m, began: m.o.Clock.Now(), placer: place.New(place.DefaultBounds), muxes: map[string]place.Mux{}, seen: map[string]*seenMux{},
		vips: map[place.Key]wantedVIP{}, placed: map[place.Key]bool{}, services: map[string][]place.Key{}, loads: newLoads(), moves: map[place.Key]*move{},
		todo: map[place.Key]bool{}, problems: map[place.Key]place.Problem{}, changed: map[ref]bool{}, wake: make(chan struct{}, 1),
	}
}

// note implements subscriber.
func (p *placement) note(c change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range c.objects {
		switch r.kind {
		case lb.KindService, lb.KindPolicy, lb.KindNode:
			p.changed[r] = true
			p.poke()
		}
	}
}

func (p *placement) poke() {
	notify.Send(p.wake)
}

// run places VIPs until ctx ends.
func (p *placement) run(ctx context.Context) {
	p.m.view.subscribe(p)
	defer p.m.view.unsubscribe(p)
	defer p.m.placing.Store(nil)
	p.begin()
	for {
		wait, err := p.round(ctx)
		if err != nil && ctx.Err() == nil {
			if !errors.Is(err, errPlacementConflict) {
				p.m.o.Log.Warn("cannot place VIPs", "error", err)
			}
			wait = placeRetry
		}
		var alarm <-chan time.Time
		if wait > 0 {
			alarm = p.m.o.Clock.After(wait)
		}
		wake, stirred := p.wake, p.m.reports.stirred
		if err != nil {
			wake, stirred = nil, nil
		}
		select {
		case <-wake:
		case <-stirred:
		case <-alarm:
		case <-ctx.Done():
			return
		}
	}
}

// begin marks all services and places as changed.
func (p *placement) begin() {
	p.m.view.mu.RLock()
	defer p.m.view.mu.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.m.view.state.Services {
		p.changed[ref{lb.KindService, name}] = true
	}
	for key := range p.m.view.state.Places {
		p.todo[key] = true
	}
}

// round reads changes, computes places, and writes those that the pace allows. It returns the
// maximum time until the next round; 0: until the next change.
func (p *placement) round(ctx context.Context) (wait time.Duration, err error) {
	now := p.m.o.Clock.Now()
	p.readMuxes(now)
	p.readServices()
	p.readLoads(now)
	if p.moved {
		for _, c := range p.placer.Step() {
			p.todo[c.Key] = true
		}
		p.moved = false
		p.tell()
	}
	p.watch(now)
	if err := p.write(ctx, now); err != nil {
		return 0, err
	}
	switch {
	case len(p.todo) > 0:
		return max(time.Millisecond, placePace-now.Sub(p.wrote)), nil
	case len(p.moves) > 0:
		return placeLookMoving, nil
	case len(p.placed) > 0 || p.weighs():
		return placeLook, nil
	}
	return 0, nil
}

// readServices reads the services that changed, and those whose policy changed.
func (p *placement) readServices() {
	p.mu.Lock()
	changed := p.changed
	p.changed = map[ref]bool{}
	p.mu.Unlock()
	if len(changed) == 0 {
		return
	}
	v := p.m.view
	v.mu.RLock()
	defer v.mu.RUnlock()
	names := map[string]bool{}
	for r := range changed {
		switch r.kind {
		case lb.KindService:
			names[r.name] = true
		case lb.KindPolicy:
			v.wanted.Naming(r.name, func(service string) { names[service] = true })
		}
	}
	before := p.every
	for name := range names {
		p.forget(name)
	}
	for name := range names {
		if svc := v.state.Services[name]; svc != nil {
			p.readLocked(svc)
		}
	}
	for name := range names {
		p.drop(name)
	}
	if p.every != before {
		p.settleMuxes()
	}
}

// forget removes a service's VIPs from vips. The placer still has them.
func (p *placement) forget(service string) {
	for _, key := range p.services[service] {
		if w, ok := p.vips[key]; ok && w.service == service {
			p.count(w, -1)
			delete(p.vips, key)
		}
	}
}

func (p *placement) count(w wantedVIP, by int) {
	if w.Replicas == 0 {
		p.every += by
	} else if w.By == place.ByLoad {
		p.byLoad += by
	}
}

// readLocked adds a service's VIPs. The view must be locked.
func (p *placement) readLocked(svc *lb.Service) {
	v := p.m.view
	wants := lb.Effective(svc, v.state.Policies).Placement
	for _, vip := range svc.VIPs {
		key := plan.VIPKey(vip)
		if v.vips.claims[key] != svc {
			continue
		}
		w := wantedVIP{service: svc.Name, tenant: svc.Tenant, VIP: place.VIP{Key: key, Replicas: int(wants.Replicas), Load: p.loads.told[key]}}
		if wants.By == lb.PlaceByLoad {
			w.By = place.ByLoad
		}
		p.vips[key] = w
		p.count(w, 1)
		p.todo[key] = true
		if w.Replicas == 0 {
			continue
		}
		p.placer.SetVIP(w.VIP)
		if stored := v.state.Places[key]; !p.placed[key] && len(stored.Muxes) > 0 {
			p.placer.Restore(key, stored.Muxes)
		}
		p.placed[key], p.moved = true, true
	}
}

// drop removes VIPs that are no longer placed from the placer, and stores the service's VIPs.
func (p *placement) drop(service string) {
	for _, key := range p.services[service] {
		if p.vips[key].Replicas == 0 && p.placed[key] {
			p.placer.DropVIP(key)
			p.todo[key], p.moved = true, true
			delete(p.placed, key)
			delete(p.loads.told, key)
		}
	}
	delete(p.services, service)
	if svc := p.m.view.state.Services[service]; svc != nil {
		for _, vip := range svc.VIPs {
			p.services[service] = append(p.services[service], plan.VIPKey(vip))
		}
	}
}
