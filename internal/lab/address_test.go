package lab

import (
	"fmt"
	"net/netip"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// designAddresses returns the address table of the design by string concatenation: an oracle that
// shares no code with the address functions.
func designAddresses(n Node) (v4, v6 string) {
	i, ten := strconv.Itoa(n.Index), strconv.Itoa(10+n.Index)
	switch n.Kind {
	case KindClient:
		return "198.51.100." + ten + "/24", "2001:db8:100::" + ten + "/64"
	case KindMux:
		return "10.10.0." + ten + "/24", "2001:db8:10::" + ten + "/64"
	case KindHost:
		return "10.20." + i + ".1/24", "2001:db8:20:" + i + "::1/64"
	case KindVM:
		vm := strconv.Itoa(10 + n.VM)
		return "10.20." + i + "." + vm + "/32", "2001:db8:20:" + i + "::" + vm + "/128"
	case KindManager:
		return "10.99.0." + ten + "/24", ""
	}
	return "", ""
}

func anyTopology(t *rapid.T) Topology {
	topology := DefaultTopology()
	topology.Clients = rapid.IntRange(1, MaxClients).Draw(t, "clients")
	topology.Muxes = rapid.IntRange(1, MaxMuxes).Draw(t, "muxes")
	topology.Hosts.Count = rapid.IntRange(1, 20).Draw(t, "hosts")
	topology.Hosts.VMs = rapid.IntRange(1, 20).Draw(t, "vms")
	return topology
}

func TestAddressesAreTheDesigns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		topology := anyTopology(t)
		if err := topology.Validate(); err != nil {
			t.Fatal(err)
		}
		seen := map[netip.Addr]string{}
		for _, a := range []Pair{routerOnClients(), routerOnMuxes(), routerOnManagers()} {
			_ = a.each(func(p netip.Prefix) error { seen[p.Addr()] = "router1"; return nil })
		}
		for i := 1; i <= topology.Hosts.Count; i++ {
			_ = routerOnHost(i).each(func(p netip.Prefix) error { seen[p.Addr()] = "router1"; return nil })
		}
		for _, n := range topology.Nodes() {
			a := n.Addresses()
			v4, v6 := designAddresses(n)
			for want, got := range map[string]netip.Prefix{v4: a.V4, v6: a.V6} {
				if want == "" {
					continue
				}
				if got.String() != netip.MustParsePrefix(want).String() {
					t.Fatalf("%s has %s, the design says %s", n.Name, got, want)
				}
				if other := seen[got.Addr()]; other != "" {
					t.Fatalf("%s is both %s and %s", got.Addr(), other, n.Name)
				}
				seen[got.Addr()] = n.Name
			}
		}
	})
}

func TestNodesAreFoundByName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		topology := anyTopology(t)
		names := map[string]bool{}
		for _, n := range topology.Nodes() {
			if names[n.Name] {
				t.Fatalf("two nodes are called %s", n.Name)
			}
			names[n.Name] = true
			if found, err := topology.Find(n.Name); err != nil || found != n {
				t.Fatalf("find %s = %+v, %v; want %+v", n.Name, found, err, n)
			}
		}
		want := 2 + topology.Clients + topology.Muxes + topology.Hosts.Count*(1+topology.Hosts.VMs)
		if len(names) != want {
			t.Fatalf("%d nodes, want %d", len(names), want)
		}
		if _, err := topology.Find(fmt.Sprintf("mux%d", topology.Muxes+1)); err == nil {
			t.Fatal("found a mux that is not there")
		}
	})
}
