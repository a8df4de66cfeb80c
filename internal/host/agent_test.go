package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

func binding(vip, dip string) plan.Binding {
	return plan.Binding{
		Key: lb.EndpointKey{VIP: netip.MustParseAddr(vip), Protocol: lb.TCP, Port: 80}, Service: "web", Member: 3,
		Outer: netip.MustParseAddr(dip), DIP: netip.MustParseAddr(dip), DIPPort: 8080, Rewrite: true,
	}
}

// settings returns a Machine with the given sysctls, others "0", and one address.
func settings(sysctls map[string]string) Machine {
	return Machine{
		Interface: "eth0",
		Sysctl: func(key string) (string, error) {
			if v, ok := sysctls[key]; ok {
				return v, nil
			}
			return "0", nil
		},
		Addresses: func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("10.20.1.1")}, nil },
	}
}

var forwarding = map[string]string{"net/ipv4/conf/eth0/forwarding": "1", "net/ipv6/conf/eth0/forwarding": "1"}

func TestApplyAndStatus(t *testing.T) {
	var tables dataplane.FakeHost
	a := New(&tables, settings(forwarding), &prober{}, clock.NewFake(time.Now()), nil)
	b := binding("203.0.113.10", "10.20.1.11")
	p := plan.Plan{Revision: 7, MTU: 1500, TunnelSources: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")}, Bindings: []plan.Binding{b}}
	if err := a.Apply(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	want := dataplane.HostState{TunnelSources: p.TunnelSources, MTU: 1500, Bindings: p.Bindings}
	if state, _ := tables.State(); !reflect.DeepEqual(state, want) {
		t.Errorf("state %+v, want %+v", state, want)
	}
	tables.SetCounters(dataplane.HostCounters{
		Reasons:  map[string]uint64{"in_delivered": 5, "in_bad_source": 1},
		Bindings: []dataplane.BindingCounter{{Binding: b, Counter: dataplane.Counter{Packets: 5, Bytes: 700}}},
	})
	status := &apiv1.NodeStatus{
		Members: []*apiv1.MemberStatus{{Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Dip: "10.20.1.11", DipPort: 8080,
			Member: 3, Alive: true, Packets: 5, Bytes: 700, Service: "web"}},
		Reasons: []*apiv1.ReasonCount{{Reason: "in_bad_source", Packets: 1, Class: "drop"}, {Reason: "in_delivered", Packets: 5, Class: "tx"}},
		Tables: []*apiv1.TableStatus{
			{Name: "bindings", Used: 1, Capacity: 65535}, {Name: "binding_parts", Capacity: 131072}, {Name: "cookie_keys", Capacity: 8192}, {Name: "handshakes", Capacity: 4096},
		},
	}
	if got := a.Status(); !proto.Equal(got, status) {
		t.Errorf("status %v, want %v", got, status)
	}
	tables.FailApply(errors.New("map is full"))
	if err := a.Apply(context.Background(), p); err == nil || err.Error() != "map is full" {
		t.Errorf("error %v", err)
	}
}

func TestStatusTellsForwarding(t *testing.T) {
	sysctls := map[string]string{}
	a := New(&dataplane.FakeHost{}, settings(sysctls), &prober{}, clock.NewFake(time.Now()), nil)
	p := plan.Plan{Bindings: []plan.Binding{binding("203.0.113.10", "10.20.1.11")}}
	if err := a.Apply(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	want := "IPv4 forwarding is off on eth0: servers behind this machine get no packets (sysctl -w net.ipv4.ip_forward=1)"
	if got := a.Status().Error; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	sysctls["net/ipv4/conf/eth0/forwarding"] = "1"
	if got := a.Status().Error; got != "" {
		t.Errorf("error %q after the cure", got)
	}
}

// TestStatusTellsASmallUplink checks the status of an uplink that cannot carry the MTU of the
// Network, to which clients may be allowed to segment.
func TestStatusTellsASmallUplink(t *testing.T) {
	machine, mtu := settings(forwarding), 1500
	machine.Links = func() []agent.Link { return []agent.Link{{Name: "eth0", MTU: mtu}} }
	a := New(&dataplane.FakeHost{}, machine, &prober{}, clock.NewFake(time.Now()), nil)
	for _, c := range []struct {
		planned uint32
		uplink  int
		want    string
	}{{0, 1500, ""}, {1500, 1500, ""}, {9000, 1500, "mtu 9000: eth0 has 1500"}, {9000, 9000, ""}, {9000, 1499, "mtu 9000: eth0 has 1499"}, {1499, 1499, ""}} {
		if mtu = c.uplink; c.planned != 0 {
			if err := a.Apply(t.Context(), plan.Plan{MTU: c.planned}); err != nil {
				t.Fatal(err)
			}
		}
		if s := a.Status(); s.GetMtuFault() != c.want || s.GetError() != "" {
			t.Errorf("%+v: mtu fault %q, error %q", c, s.GetMtuFault(), s.GetError())
		}
	}
}

func TestProblems(t *testing.T) {
	six := binding("2001:db8:f::10", "2001:db8:20:1::11")
	four, own := binding("203.0.113.10", "10.20.1.11"), binding("203.0.113.10", "10.20.1.1")
	for name, c := range map[string]struct {
		sysctls  map[string]string
		bindings []plan.Binding
		cures    []string
	}{
		"no bindings":          {nil, nil, nil},
		"behind":               {nil, []plan.Binding{four, six}, []string{"sysctl -w net.ipv4.ip_forward=1", "sysctl -w net.ipv6.conf.all.forwarding=1"}},
		"behind, forwarding":   {forwarding, []plan.Binding{four, six}, nil},
		"own needs none":       {nil, []plan.Binding{own}, nil},
		"own, strict for all":  {map[string]string{"net/ipv4/conf/all/rp_filter": "1"}, []plan.Binding{own}, []string{"sysctl -w net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.eth0.rp_filter=2"}},
		"own, loose on uplink": {map[string]string{"net/ipv4/conf/all/rp_filter": "1", "net/ipv4/conf/eth0/rp_filter": "2"}, []plan.Binding{own}, nil},
	} {
		var cures []string
		for _, p := range settings(c.sysctls).Problems(c.bindings) {
			cures = append(cures, p.Cure)
		}
		if !reflect.DeepEqual(cures, c.cures) {
			t.Errorf("%s: cures %q, want %q", name, cures, c.cures)
		}
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	own, err := lockRunDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("a host agent runs with this run directory: end it first: lock %s/agent.lock: another process holds it (process %d)", dir, os.Getpid())
	if err := Stop("/nowhere", dir); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %s…", err, want)
	}
	own.Close()
	if own, err = lockRunDir(dir); err != nil {
		t.Fatalf("after unlocking: %v", err)
	}
	own.Close()
}
