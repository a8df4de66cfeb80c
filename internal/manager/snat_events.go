package manager

import (
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/snat"
)

// snatFullPace is the minimum time between two events of one kind of refusal for a VIP.
const snatFullPace = time.Minute

// snatFull holds the time of the last event for each VIP and reason of refusal.
type snatFull struct{ told map[snatRefusal]time.Time }

type snatRefusal struct {
	vip    snat.VIP
	reason snat.Reason
}

// refused emits an event for a refusal, unless one of its kind was emitted within snatFullPace.
func (f *snatFull) refused(m *Manager, a snat.Answer, now time.Time) {
	key := snatRefusal{a.Holder.VIP, a.Reason}
	if at, ok := f.told[key]; ok && now.Sub(at) < snatFullPace {
		return
	}
	if f.told == nil {
		f.told = map[snatRefusal]time.Time{}
	}
	f.told[key] = now
	m.view.mu.RLock()
	conf := m.view.snat.vips[a.Holder.VIP]
	m.view.mu.RUnlock()
	if conf == nil {
		return
	}
	switch a.Reason {
	case snat.ReasonExhausted:
		m.objectEvent(lb.KindService, conf.service, reasonSNATExhausted, "no ports of %s are left for outbound connections of %s: new ones to far ends for which it has no port wait", a.Holder.VIP.Addr, a.Holder.DIP)
	case snat.ReasonDIPLimit:
		m.objectEvent(lb.KindService, conf.service, reasonSNATLimited, "%s has as many ports of %s as a DIP may have", a.Holder.DIP, a.Holder.VIP.Addr)
	case snat.ReasonTenantLimit:
		m.objectEvent(lb.KindService, conf.service, reasonSNATLimited, "tenant %s has as many ports as it may have: %s gets no more of %s", conf.tenant, a.Holder.DIP, a.Holder.VIP.Addr)
	}
}
