package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// rig is a lab for the exclusive use of one suite.
type rig struct {
	lab     *lab.Lab
	manager shuntv1connect.ManagerClient
}

const (
	// downWithin bounds the removal of the lab, which also happens after an interrupt.
	downWithin = 30 * time.Second
	// stepWithin bounds one apply, one recovery, one return.
	stepWithin = 30 * time.Second
	// pollEvery is the poll interval of conditions without notification.
	pollEvery = 20 * time.Millisecond
	// servicePort is the port of the services that the suites make.
	servicePort = 80
)

// withRig starts the default lab, runs f, and removes the lab in any case.
func withRig(ctx context.Context, o Options, f func(context.Context, *rig) error) error {
	return withRigOf(ctx, o, lab.DefaultTopology(), f)
}

// withRigOf is withRig with a lab of this topology, under the name in the options.
func withRigOf(ctx context.Context, o Options, topology lab.Topology, f func(context.Context, *rig) error) (err error) {
	topology.Name = o.LabName
	o.progressf("lab %s: up", topology.Name)
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), downWithin)
		defer cancel()
		o.progressf("lab %s: down", topology.Name)
		err = errors.Join(err, lab.Down(clean, topology.Name))
	}()
	l, err := lab.Up(ctx, topology, lab.Options{Progress: o.Progress})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	manager, err := l.Client()
	if err != nil {
		return err
	}
	err = f(ctx, &rig{lab: l, manager: manager})
	if ctx.Err() != nil {
		return context.Cause(ctx) // the end of ctx caused any other error
	}
	return err
}

// clientNamespace returns the namespace that the traffic comes from.
func (r *rig) clientNamespace() string {
	return lab.Node{Name: "client1"}.Namespace(r.lab.Topology.Name)
}

// clientAddress returns the IPv4 address of client1.
func (r *rig) clientAddress() netip.Addr { return lab.ClientAddresses(1).V4.Addr() }

// portRange is a range of source ports, the last included.
type portRange struct{ first, last uint16 }

// dialer opens connections from client1, from source ports of the range. Connections through a VIP
// and to the DIP behind it need separate ranges, because a host distinguishes them by the client's
// port alone.
func (r *rig) dialer(ports portRange) dialFunc {
	control := func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_LOCAL_PORT_RANGE, int(ports.first)|int(ports.last)<<16)
		})
		if errors.Is(failed, unix.ENOPROTOOPT) {
			// Before Linux 6.3: ports of a few requests may then collide and fail.
			failed = nil
		}
		return errors.Join(err, failed)
	}
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = netdev.In(r.clientNamespace(), func() error {
			// Happy eyeballs would dial from other threads, outside the namespace.
			d := net.Dialer{FallbackDelay: -1, Control: control}
			conn, err = d.DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
}

// backends returns the first count servers of the lab, one on each host.
func (r *rig) backends(count int) []*apiv1.Backend {
	var all []*apiv1.Backend
	for i := 1; i <= count; i++ {
		all = append(all, &apiv1.Backend{
			Dip:  []string{lab.VMAddresses(i, 1).V4.Addr().String()},
			Port: lab.ServerPort,
			Host: lab.HostAddresses(i).V4.Addr().String(),
		})
	}
	return all
}

// service returns a web service on an IPv4 VIP with the given ports.
func service(name string, vip netip.Addr, backends []*apiv1.Backend, ports ...int) *apiv1.Object {
	s := &apiv1.Service{Name: name, Vip: []string{vip.String()}}
	for _, port := range ports {
		s.Endpoints = append(s.Endpoints, &apiv1.Endpoint{
			Protocol: "tcp",
			Port:     strconv.Itoa(port),
			Backends: backends,
			Health:   &apiv1.Health{Http: &apiv1.HTTPCheck{Path: "/healthz"}, Interval: durationpb.New(time.Second)},
		})
	}
	return &apiv1.Object{Kind: &apiv1.Object_Service{Service: s}}
}

// apply stores objects.
func (r *rig) apply(ctx context.Context, objects ...*apiv1.Object) error {
	_, err := r.manager.Apply(ctx, connect.NewRequest(&apiv1.ApplyRequest{Objects: objects}))
	return err
}

// remove deletes a service.
func (r *rig) remove(ctx context.Context, name string) error {
	ref := &apiv1.ObjectRef{Kind: "Service", Name: name}
	_, err := r.manager.Delete(ctx, connect.NewRequest(&apiv1.DeleteRequest{Objects: []*apiv1.ObjectRef{ref}}))
	return err
}

// waitRoutes waits until the router has the wanted number of next hops to a VIP.
func (r *rig) waitRoutes(ctx context.Context, vip netip.Addr, hops int) error {
	ctx, cancel := context.WithTimeout(ctx, stepWithin)
	defer cancel()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		via, err := r.lab.RoutesAtRouter(netip.PrefixFrom(vip, vip.BitLen()))
		if err == nil && len(via) == hops {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %d next hops to %s: have %v (%v): %w", hops, vip, via, err, ctx.Err())
		case <-ticker.C:
		}
	}
}

// serve applies a service on the numbered VIP and waits until every mux serves it and each lane
// gets a reply.
func (r *rig) serve(ctx context.Context, name string, n int, backends []*apiv1.Backend) (netip.Addr, error) {
	vip, _ := lab.VIPAddresses(n)
	if err := r.apply(ctx, service(name, vip, backends, servicePort)); err != nil {
		return vip, err
	}
	if err := r.waitRoutes(ctx, vip, r.lab.Topology.Muxes); err != nil {
		return vip, err
	}
	p, err := r.probe(vip, servicePort, time.Millisecond)
	if err != nil {
		return vip, err
	}
	defer p.close()
	p.hurry()
	_, err = p.waitAll(ctx)
	return vip, err
}

// laneCount is the number of flows that are probed in parallel if the router cannot report which
// mux each of them uses. With two muxes, the odds that all of them use the same one are 1 in
// 32,768.
const laneCount = 16

// probe starts probing a VIP's port from client1.
func (r *rig) probe(vip netip.Addr, port uint16, tick time.Duration) (*prober, error) {
	return startProber(r.clientNamespace(), r.clientAddress(), netip.AddrPortFrom(vip, port), lanePorts(laneCount), tick)
}

// probeEachMux is probe with the fewest flows that use every mux twice. The router must have a
// route to the VIP.
func (r *rig) probeEachMux(vip netip.Addr, port uint16, tick time.Duration) (*prober, error) {
	target := netip.AddrPortFrom(vip, port)
	ports, err := r.lab.FlowsOverMuxes(netip.AddrPortFrom(r.clientAddress(), firstLanePort), target, 2)
	if err != nil {
		return nil, err
	}
	return startProber(r.clientNamespace(), r.clientAddress(), target, ports, tick)
}
