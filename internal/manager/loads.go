package manager

import (
	"cmp"
	"slices"
	"sync"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/plan"
)

// hostLoads holds the load of members as hosts report it, for muxes. It is in memory only. Loads
// are not withdrawn: they expire unless they are reported again.
type hostLoads struct {
	mu    sync.Mutex
	table *load.Table
	pace  load.Pace
	// stirred is closed and replaced when loads arrive.
	stirred chan struct{}
}

func newHostLoads() *hostLoads {
	return &hostLoads{table: load.NewTable(), stirred: make(chan struct{})}
}

// Origins of loads. On a leader, names of followers are origins, too.
const (
	loadsOwn    = ""  // hosts whose streams end here
	loadsLeader = "*" // not the name of a manager
)

// put adds loads to the table.
func (l *hostLoads) put(members []load.Member, origin string, now time.Time) {
	if len(members) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.table.Put(members, origin, now)
	l.pace.Heard(members, now)
	close(l.stirred)
	l.stirred = make(chan struct{})
}

// every returns the report interval of the fastest host.
func (l *hostLoads) every(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pace.Every(now)
}

// next returns the channel that is closed when loads arrive.
func (l *hostLoads) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stirred
}

// told returns the newest load of a member, or nil.
func (l *hostLoads) told(k load.Key, now time.Time) *apiv1.MemberLoad {
	l.mu.Lock()
	defer l.mu.Unlock()
	of, at, known := l.table.Told(k, now)
	if !known {
		return nil
	}
	return convert.ToMemberLoad(of, now.Sub(at))
}

// hearLoad stores the members' loads in a report of a host whose stream ends here. It ignores
// members of other hosts and endpoints with invalid loads.
func (m *Manager) hearLoad(s *session, in *apiv1.LoadReport) {
	if s.role != lb.RoleHost || s.via != nil {
		return
	}
	own := map[healthKey]map[uint32]bool{}
	for _, e := range in.GetEndpoints() {
		own[loadKeyOf(e)] = map[uint32]bool{}
	}
	m.view.ownMembers(s, own)
	var kept []load.Member
	for _, e := range in.GetEndpoints() {
		members, err := convert.FromLoadReport(&apiv1.LoadReport{Endpoints: []*apiv1.EndpointLoad{e}})
		if err != nil {
			m.o.Log.Debug("a report of load that cannot be", "node", s.name, "error", err)
			continue
		}
		ids := own[loadKeyOf(e)]
		kept = append(kept, slices.DeleteFunc(members, func(x load.Member) bool { return !ids[uint32(x.Key.Member)] })...)
	}
	m.loads.put(kept, loadsOwn, m.o.Clock.Now())
}

func loadKeyOf(e *apiv1.EndpointLoad) healthKey {
	return healthKey{e.GetVni(), e.GetVip(), e.GetProtocol(), e.GetPort(), e.GetPortEnd()}
}

// relayedLoad stores loads that another manager relays. That manager has checked which host they
// belong to.
func (m *Manager) relayedLoad(in *apiv1.LoadReport, origin string) {
	members, err := convert.FromLoadReport(in)
	if err != nil {
		m.o.Log.Debug("a report of load that cannot be", "manager", origin, "error", err)
		return
	}
	m.loads.put(members, origin, m.o.Clock.Now())
}

// loadStatus returns the load of the members of a service, or of all services, and the keys of
// these members.
func (m *Manager) loadStatus(service string, visible owned) ([]*apiv1.LoadStatus, []load.Key) {
	if service == "" {
		return nil, nil
	}
	type member struct {
		load.Key
		status *apiv1.LoadStatus
	}
	var all []member
	v := m.view
	v.mu.RLock()
	for key, st := range v.state.Endpoints {
		own := v.owners[key]
		if own.ep == nil || service != everyService && own.svc.Name != service || !visible.has(own.svc.Name) {
			continue
		}
		for _, ms := range st.Members {
			all = append(all, member{load.Key{Endpoint: key, Member: ms.ID}, &apiv1.LoadStatus{
				Service: own.svc.Name, Tenant: own.svc.Tenant, Vip: key.VIP.String(), Protocol: key.Protocol.String(), Port: uint32(key.Port),
				PortEnd: uint32(key.PortEnd), Dip: ms.Backend.DIP.String(), DipPort: uint32(ms.Backend.Port), Member: uint32(ms.ID), Scheduler: own.ep.Scheduler,
			}})
		}
	}
	v.mu.RUnlock()
	slices.SortFunc(all, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.status.Service, b.status.Service), plan.CompareKeys(a.Endpoint, b.Endpoint), cmp.Compare(a.Member, b.Member))
	})
	out, keys, now := make([]*apiv1.LoadStatus, len(all)), make([]load.Key, len(all)), m.o.Clock.Now()
	for i, x := range all {
		x.status.Load = m.loads.told(x.Key, now)
		out[i], keys[i] = x.status, x.Key
	}
	return out, keys
}
