package bench

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/shuntlb/shunt/internal/bench/checker"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
	"github.com/shuntlb/shunt/internal/netdev"
)

// healthRig is a checker's machine and, at the other end of a veth, all servers.
type healthRig struct {
	near, far string // namespaces
	cpu       int    // that all of it runs on
	pins      string // directory of the checker's programs
	responder *benchrun.Responder
	undo      []func() error
}

// Names and addresses of the rig.
const (
	healthDevice = "servers"
	healthPort   = 80
	// bpffs is where the BPF filesystem is mounted.
	bpffs = "/sys/fs/bpf"
)

var (
	healthNear    = netip.MustParsePrefix("10.127.0.1/24")
	healthFar     = netip.MustParsePrefix("10.127.0.2/24")
	healthServers = netip.MustParsePrefix("10.128.0.0/13")
)

// openHealthRig makes namespaces and devices and starts the servers there.
func openHealthRig(o Options, cpu int) (*healthRig, error) {
	r := &healthRig{near: o.LabName + "-health-near", far: o.LabName + "-health-far", cpu: cpu, pins: filepath.Join(bpffs, o.LabName+"-health")}
	if err := r.build(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *healthRig) close() error {
	var errs []error
	for i := len(r.undo) - 1; i >= 0; i-- {
		errs = append(errs, r.undo[i]())
	}
	return errors.Join(errs...)
}

// unpin detaches programs that a checker left pinned.
func (r *healthRig) unpin() error {
	if _, err := os.Stat(r.pins); err != nil {
		return nil
	}
	return errors.Join(dataplane.DetachMux(r.pins), os.RemoveAll(r.pins))
}

func (r *healthRig) build() error {
	if err := r.unpin(); err != nil {
		return err
	}
	r.undo = append(r.undo, r.unpin)
	for _, name := range []string{r.near, r.far} {
		// Remove the namespace that a killed run left first.
		if err := netdev.DeleteNamespace(name); err != nil {
			return err
		}
		if err := netdev.CreateNamespace(name); err != nil {
			return err
		}
		r.undo = append(r.undo, func() error { return netdev.DeleteNamespace(name) })
		quiet := []netdev.Sysctl{{Key: "net/ipv6/conf/all/disable_ipv6", Value: "1"}, {Key: "net/ipv6/conf/default/disable_ipv6", Value: "1"}}
		if err := netdev.SetSysctls(name, quiet); err != nil {
			return err
		}
	}
	if err := joinBy(r.near, r.far, healthDevice); err != nil {
		return err
	}
	if err := r.address(); err != nil {
		return err
	}
	device, err := index(r.far, healthDevice)
	if err != nil {
		return err
	}
	if r.responder, err = benchrun.OpenResponder(); err != nil {
		return err
	}
	r.undo = append(r.undo, r.responder.Close)
	return netdev.In(r.far, func() error { return r.responder.Attach(device) })
}

// address gives addresses to both ends and the route to the servers. Frames that the servers'
// program sends back only arrive if receive offload is on.
func (r *healthRig) address() error {
	near, err := netdev.OpenNamespace(r.near)
	if err != nil {
		return err
	}
	defer near.Close()
	far, err := netdev.OpenNamespace(r.far)
	if err != nil {
		return err
	}
	defer far.Close()
	return errors.Join(
		near.SetUp("lo", true),
		near.AddAddress(healthDevice, healthNear), far.AddAddress(healthDevice, healthFar),
		near.SetOffload(healthDevice, netdev.OffloadGRO, true),
		near.AddRoute(netdev.Route{Destination: healthServers, Via: healthFar.Addr(), Device: healthDevice}),
	)
}

// job returns a job for a checker of the rig.
func (r *healthRig) job(engine string, c healthCase, interval time.Duration, targets int) checker.Job {
	return checker.Job{
		Engine: engine, Kind: c.kind, First: healthServers.Addr(), Port: healthPort, Targets: targets,
		Interval: interval, Timeout: min(healthTimeout, interval), InFlight: healthInFlight(), Device: healthDevice, Pins: r.pins,
	}
}
