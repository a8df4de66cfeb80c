package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

// hostStage is a client, two hosts connected to it, and a server behind each, all in separate
// namespaces. The client encapsulates packets for the VIP itself, so that no mux is involved: the
// difference from direct access is the hosts' work.
type hostStage struct {
	client string
	hosts  [2]stageHost
	tunnel *benchrun.Tunnel
	undo   []func() error
}

// stageHost is one of the hosts with its server.
type stageHost struct {
	host, server string // namespaces
	data         *benchrun.Host
	device       int // the client's, towards the host
}

// Names of the stage's devices. Both ends of a pair have one name, except the client's.
const (
	stageUp     = "up"
	stageServer = "vm"
)

// stageClient is the client's source address.
var stageClient = netip.MustParseAddr("198.51.100.11")

// stageAddress returns an address of the links of host i: the client's end, the host's, the host's
// towards its server, or the server's.
func stageAddress(third, i, last int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(third), byte(1 + i), byte(last)})
}

// stageTowards returns the client's device towards host i.
func stageTowards(i int) string { return fmt.Sprintf("host%d", i+1) }

func stageRouter(i int) netip.Addr  { return stageAddress(20, i, 254) }
func stageOwn(i int) netip.Addr     { return stageAddress(20, i, 1) }
func stageGateway(i int) netip.Addr { return stageAddress(30, i, 1) }
func stageDIP(i int) netip.Addr     { return stageAddress(30, i, 11) }

// openHostStage builds the stage. Both hosts serve the VIP's ports. Packets for the VIP go to host
// 0 at first.
func openHostStage(o Options, flows uint32, ports ...uint16) (*hostStage, error) {
	s := &hostStage{client: o.LabName + "-host-client"}
	for i := range s.hosts {
		s.hosts[i].host, s.hosts[i].server = fmt.Sprintf("%s-host-%d", o.LabName, i+1), fmt.Sprintf("%s-host-%d-vm", o.LabName, i+1)
	}
	if err := s.build(flows, ports); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *hostStage) close() error {
	var errs []error
	for _, undo := range slices.Backward(s.undo) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}

// build makes namespaces, links, routes and programs.
func (s *hostStage) build(flows uint32, ports []uint16) error {
	for _, name := range []string{s.client, s.hosts[0].host, s.hosts[0].server, s.hosts[1].host, s.hosts[1].server} {
		// Remove the namespace that a killed run left first.
		if err := netdev.DeleteNamespace(name); err != nil {
			return err
		}
		if err := netdev.CreateNamespace(name); err != nil {
			return err
		}
		s.undo = append(s.undo, func() error { return netdev.DeleteNamespace(name) })
		if err := netdev.SetSysctls(name, forwarding); err != nil {
			return err
		}
	}
	client, err := netdev.OpenNamespace(s.client)
	if err != nil {
		return err
	}
	defer client.Close()
	for _, err := range []error{client.SetUp("lo", true), client.AddAddress("lo", netip.PrefixFrom(stageClient, 32))} {
		if err != nil {
			return err
		}
	}
	for i := range s.hosts {
		if err := s.join(client, i); err != nil {
			return err
		}
	}
	vip := benchrun.HostVIP()
	if err := client.AddRoute(netdev.Route{Destination: netip.PrefixFrom(vip, 32), Via: stageOwn(0), Device: stageTowards(0)}); err != nil {
		return err
	}
	for i := range s.hosts {
		if err := s.load(i, flows, ports); err != nil {
			return err
		}
	}
	err = netdev.In(s.client, func() (err error) {
		s.tunnel, err = benchrun.OpenTunnel(s.hosts[0].device, vip)
		return err
	})
	if err != nil {
		return err
	}
	s.undo = append(s.undo, s.tunnel.Close)
	return s.aim(0)
}

// join makes the links of host i and its server.
func (s *hostStage) join(client *netdev.Namespace, i int) error {
	h := &s.hosts[i]
	host, err := netdev.OpenNamespace(h.host)
	if err != nil {
		return err
	}
	defer host.Close()
	server, err := netdev.OpenNamespace(h.server)
	if err != nil {
		return err
	}
	defer server.Close()
	towards := stageTowards(i)
	all := netip.MustParsePrefix("0.0.0.0/0")
	steps := []func() error{
		func() error {
			return netdev.AddVeth(netdev.VethEnd{Namespace: client, Name: towards}, netdev.VethEnd{Namespace: host, Name: stageUp}, liveMTU)
		},
		func() error {
			return netdev.AddVeth(netdev.VethEnd{Namespace: host, Name: stageServer}, netdev.VethEnd{Namespace: server, Name: stageServer}, liveMTU)
		},
		func() error { return client.AddAddress(towards, netip.PrefixFrom(stageRouter(i), 24)) },
		func() error { return host.AddAddress(stageUp, netip.PrefixFrom(stageOwn(i), 24)) },
		func() error { return host.AddAddress(stageServer, netip.PrefixFrom(stageGateway(i), 24)) },
		func() error { return server.AddAddress(stageServer, netip.PrefixFrom(stageDIP(i), 24)) },
		func() error {
			return host.AddRoute(netdev.Route{Destination: all, Via: stageRouter(i), Device: stageUp})
		},
		func() error {
			return server.AddRoute(netdev.Route{Destination: all, Via: stageGateway(i), Device: stageServer})
		},
		func() error {
			return client.AddRoute(netdev.Route{Destination: netip.PrefixFrom(stageDIP(i), 24).Masked(), Via: stageOwn(i), Device: towards})
		},
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	h.device, err = index(s.client, towards)
	return err
}

// load gives host i its programs and tables. Each host is the previous owner of all slots that the
// other owns now.
func (s *hostStage) load(i int, flows uint32, ports []uint16) error {
	h := &s.hosts[i]
	up, err := index(h.host, stageUp)
	if err != nil {
		return err
	}
	err = netdev.In(h.host, func() (err error) {
		h.data, err = benchrun.OpenHost(up, hostPins(h.host), flows)
		return err
	})
	if err != nil {
		return err
	}
	s.undo = append(s.undo, h.data.Close)
	other := 1 - i
	state := dataplane.HostState{TunnelSources: benchrun.TunnelSources(), MTU: liveMTU}
	before, now := slices.Repeat([]uint16{uint16(other)}, 1<<ring.CodeMin), slices.Repeat([]uint16{uint16(i)}, 1<<ring.CodeMin)
	for _, port := range ports {
		key := lb.EndpointKey{VIP: benchrun.HostVIP(), Protocol: lb.TCP, Port: port}
		state.Bindings = append(state.Bindings, plan.Binding{
			Key: key, Member: uint16(i), Outer: stageDIP(i), DIP: stageDIP(i), DIPPort: port, Rewrite: true, Idle: benchHostIdle,
		})
		state.Repairs = append(state.Repairs, &dataplane.HostRepair{
			Key: key, Hash: ringKey, Source: stageOwn(i), Turns: ring.Fold(before, now), Peers: []netip.Addr{stageOwn(other)},
			Targets: []dataplane.HostTarget{{ID: uint16(i), Outer: stageDIP(i), Here: true}, {ID: uint16(other), Outer: stageDIP(other)}},
		})
	}
	return h.data.Apply(state)
}

// aim sends packets for the VIP to host i from now on, as a mux does whose ring changed.
func (s *hostStage) aim(i int) error { return s.tunnel.To(stageDIP(i), s.hosts[i].device) }

// listen opens a server's port on host i.
func (s *hostStage) listen(i int, port uint16) (l net.Listener, err error) {
	err = netdev.In(s.hosts[i].server, func() error {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(stageDIP(i), port).String())
		return err
	})
	return l, err
}

// dial opens a connection of the client.
func (s *hostStage) dial(ctx context.Context, to netip.AddrPort) (conn *net.TCPConn, err error) {
	err = netdev.In(s.client, func() error {
		d := net.Dialer{FallbackDelay: -1, LocalAddr: &net.TCPAddr{IP: stageClient.AsSlice()}}
		c, err := d.DialContext(ctx, "tcp4", to.String())
		if err == nil {
			conn = c.(*net.TCPConn)
		}
		return err
	})
	return conn, err
}

// reasons returns the counters of host i.
func (s *hostStage) reasons(i int) (map[string]uint64, error) {
	c, err := s.hosts[i].data.Counters()
	return c.Reasons, err
}
