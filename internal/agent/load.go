package agent

import (
	"fmt"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/load"
)

// Loads provides a host's load reports of its members.
type Loads interface {
	// Begin starts another stream, whose receiver has no loads yet.
	Begin()
	// Changed is notified when Take has something to return.
	Changed() <-chan struct{}
	// Take returns the loads to report now.
	Take() []load.Member
}

// load returns a report of loads; nil: there are none to report.
func (l *loop) load() *apiv1.NodeReport {
	report := convert.ToLoadReport(l.o.Loads.Take())
	if report == nil {
		return nil
	}
	r := l.ack()
	r.Load = report
	return r
}

// heardLoad passes on the loads that hosts report for their members.
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
