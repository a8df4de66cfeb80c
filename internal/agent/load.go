package agent

import (
	"fmt"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/load"
)

// Loads is what a host knows of the load of its members.
type Loads interface {
	// Begin says that another stream began: whoever listens knows nothing.
	Begin()
	// Changed is poked when there is something to take.
	Changed() <-chan struct{}
	// Take returns what is to be told now.
	Take() []load.Member
}

// load is a report of what is to be told of loads; nil for nothing.
func (l *loop) load() *apiv1.NodeReport {
	report := convert.ToLoadReport(l.o.Loads.Take())
	if report == nil {
		return nil
	}
	r := l.ack()
	r.Load = report
	return r
}

// heardLoad passes on what hosts say of the load of their members.
func (l *loop) heardLoad(in *apiv1.LoadReport) error {
	if l.o.HeardLoads == nil {
		return nil
	}
	members, err := convert.FromLoadReport(in)
	if err != nil {
		return fmt.Errorf("loads of hosts: %w", err)
	}
	l.o.HeardLoads(members)
	return nil
}
