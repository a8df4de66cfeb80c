package packet

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unique"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// hostPrograms attaches the host's programs to the servers' machine.
func (r *rig) hostPrograms(bindings []plan.Binding, sources []netip.Prefix) {
	r.t.Helper()
	dir := filepath.Join("/sys/fs/bpf", "shunt-"+r.servers.Name)
	var host *dataplane.Host
	must(r.t, netdev.In(r.servers.Name, func() error {
		i, err := netdev.FindInterface("eth0")
		if err == nil {
			host, err = dataplane.OpenHost(dataplane.HostOptions{Ifindex: i.Index, Dir: dir})
		}
		return err
	}))
	r.t.Cleanup(func() {
		host.Close()
		dataplane.DetachHost(dir)
		os.Remove(dir)
	})
	must(r.t, host.Apply(dataplane.HostState{TunnelSources: sources, MTU: 1500, Bindings: bindings}))
}

// TestThroughTunnels probes VIPs through every form of tunnel to the real programs of a host, which
// have no configuration for probes.
func TestThroughTunnels(t *testing.T) {
	r := newRig(t)
	r.serve(8000, say(answer200))
	sources := []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("fd53:6875:6e74::/64")}
	vip4, vip6 := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:f::10")
	dip4, dip6 := targets.Addr().Next(), targets6.Addr().Next()
	// The servers' own route carries the answers from the VIPs.
	type way struct {
		vip, dip, outer netip.Addr
		encap           string
	}
	ways := []way{
		{vip4, dip4, dip4, lb.EncapIPIP}, {vip6, dip6, dip6, lb.EncapIPIP}, {vip4, dip4, serverAddr6, lb.EncapIPIP}, {vip6, dip6, serverAddress, lb.EncapIPIP},
		{vip4, dip4, serverAddress, lb.EncapGUE}, {vip6, dip6, serverAddr6, lb.EncapGUE}, {vip4, dip4, serverAddr6, lb.EncapGUE}, {vip6, dip6, serverAddress, lb.EncapGUE},
	}
	var bindings []plan.Binding
	var ids []uint32
	var dropped []uint32
	for i, w := range ways {
		key := lb.EndpointKey{VIP: w.vip, Protocol: lb.TCP, Port: uint16(80 + i)}
		bindings = append(bindings, plan.Binding{Key: key, Member: uint16(500 + i), Outer: w.outer, DIP: w.dip, DIPPort: 8000, Rewrite: true, Encap: w.encap})
		for _, change := range []func(*lb.Check){tcp, http} {
			through := func(port uint16, timeout time.Duration) probe.Target {
				x := target(netip.AddrPortFrom(w.dip, 8000), func(c *lb.Check) { change(c); c.Through, c.Timeout = lb.ThroughTunnel, timeout })
				x.Tunnel = unique.Make(probe.Tunnel{VIP: netip.AddrPortFrom(w.vip, port), Outer: w.outer, Encap: w.encap, Member: uint16(500 + i)})
				return x
			}
			ids = append(ids, r.add(through(uint16(80+i), 30*time.Second))...)
			dropped = append(dropped, r.add(through(uint16(180+i), 100*time.Millisecond))...)
		}
	}
	r.hostPrograms(bindings, sources)
	r.asker.SetTunnelSources(sources)
	r.resolve(dip4, dip6, serverAddress, serverAddr6)
	for range 2 {
		for id, a := range r.ask(ids) {
			if a.Verdict != probe.Good {
				t.Errorf("%+v: %+v", ways[id/4], a)
			}
		}
	}
	// The servers answer directly, but the host has no such member.
	for id, a := range r.ask(dropped) {
		want := "no answer to three SYNs within 100 ms"
		if a.Verdict != probe.Bad || !a.Silent || a.Words != want {
			t.Errorf("%+v: %+v, want %q", ways[id/4], a, want)
		}
	}
	// Probes need tunnel sources.
	r.asker.SetTunnelSources(nil)
	for id, a := range r.ask(ids[:1]) {
		if want := fmt.Sprintf("tunnel to %s: no tunnel source of its family", ways[id/4].outer); a.Verdict != probe.Void || a.Words != want {
			t.Errorf("%+v, want %q", a, want)
		}
	}
}
