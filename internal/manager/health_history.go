package manager

import (
	"slices"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// maxHistory is the number of changes of a backend that a response has: the newest.
const maxHistory = 50

// withHistory adds the earlier health changes of backends. It reads them from the events, the only
// record of them, which are kept for a week and available to every leader.
func (m *Manager) withHistory(seats []seat, of []*apiv1.BackendHealth) error {
	byService := map[string][]*apiv1.Event{}
	for i, p := range seats {
		events, read := byService[p.service]
		if !read {
			var err error
			f := eventFilter{kind: string(lb.KindService), name: p.service, created: m.view.createdAt(ref{lb.KindService, p.service})}
			pages, _, _ := m.view.events.since(0, &f)
			if events, err = f.read(pages); err != nil {
				return err
			}
			events = events[1+lastDeleted(events):]
			byService[p.service] = events
		}
		of[i].History = p.history(events)
	}
	return nil
}

// lastDeleted returns the index of the last deletion, or -1. Earlier events are of another object
// with the same name, maybe another tenant's.
func lastDeleted(events []*apiv1.Event) int {
	for i, e := range slices.Backward(events) {
		if e.GetReason() == reasonDeleted {
			return i
		}
	}
	return -1
}

// history returns the last maxHistory changes of a backend in events, oldest first.
func (p *seat) history(events []*apiv1.Event) []*apiv1.HealthChange {
	var out []*apiv1.HealthChange
	about, dip := endpointText(p.key)+": ", p.backend.DIP.String()
	for _, e := range events {
		if len(e.GetChanges()) == 0 || !strings.HasPrefix(e.GetMessage(), about) {
			continue
		}
		for _, c := range e.GetChanges() {
			if c.GetDip() == dip && c.GetDipPort() == uint32(p.backend.Port) {
				out = append(out, c)
			}
		}
	}
	return out[max(0, len(out)-maxHistory):]
}
