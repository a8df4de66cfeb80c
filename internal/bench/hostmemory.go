package bench

import (
	"errors"

	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
	"github.com/shuntlb/shunt/internal/netdev"
)

// hostSize is a host with a flow table for this many flows.
type hostSize struct {
	name  string
	flows uint32
}

var hostSizes = []hostSize{{"host-1Mi", mi}, {"host-4Mi", 4 * mi}}

// run measures the kernel memory of a host's tables.
func (c hostSize) run(o Options) (row Row, err error) {
	name := o.LabName + "-memory"
	ifindex, err := hostNamespace(name)
	if err != nil {
		return row, errors.Join(err, netdev.DeleteNamespace(name))
	}
	defer func() { err = errors.Join(err, netdev.DeleteNamespace(name)) }()
	err = netdev.In(name, func() error {
		host, err := benchrun.OpenHost(ifindex, hostPins(name), c.flows)
		if err != nil {
			return err
		}
		tables, err := host.Footprint()
		sum := uint64(0)
		for _, bytes := range tables {
			sum += bytes
		}
		flows := tables["flow_tags"] + tables["flow_records"] + tables["flow_cookies"]
		row = Row{Case: c.name, Fields: []Field{{"bytes", sum}, {"per_flow", round(float64(flows) / float64(c.flows))}}}
		return errors.Join(err, host.Close())
	})
	return row, err
}
