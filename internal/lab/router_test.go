package lab

import (
	"net/netip"
	"strings"
	"testing"
)

func TestBIRDSessions(t *testing.T) {
	got := birdSessions(`BIRD 2.0.12 ready.
Name       Proto      Table      State  Since         Info
device1    Device     ---        up     12:36:50.365  

mux1_v4    BGP        ---        up     12:36:50.365  Established   
  BGP state:          Established
    Neighbor address: 10.10.0.11
    Neighbor AS:      65010
  Channel ipv4
    State:          UP

mux1_v6    BGP        ---        start  12:36:50.365  Active        
  BGP state:          Active
    Neighbor address: 2001:db8:10::11
    Neighbor AS:      65010
`)
	want := map[netip.Addr]string{
		netip.MustParseAddr("10.10.0.11"):      "established",
		netip.MustParseAddr("2001:db8:10::11"): "active",
	}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for peer, state := range want {
		if got[peer] != state {
			t.Errorf("%s is %q, want %q", peer, got[peer], state)
		}
	}
}

// Every mux has a session of each family with password and BFD, whatever the daemon.
func TestRouterConfigurations(t *testing.T) {
	topology := DefaultTopology()
	topology.Muxes = 3
	c := newRouterConfig(topology, "secret")
	for name, want := range map[string]struct {
		text      string
		perMux    []string
		otherwise []string
	}{
		"frr": {frrBGP, []string{"neighbor ADDR remote-as 65010", "neighbor ADDR password secret", "neighbor ADDR bfd 3 100 100", "neighbor ADDR activate"},
			[]string{"router bgp 65000", "maximum-paths 16", "permit 203.0.113.0/24 ge 32", "permit 2001:db8:f::/64 ge 128"}},
		"bird": {birdConf, []string{"neighbor ADDR as 65010;"},
			[]string{"graceful restart aware;", birdBFD, "as 65000;", `password "secret";`, "merge paths on limit 16", "203.0.113.0/24{32,32}", "2001:db8:f::/64{128,128}"}},
	} {
		conf, err := c.render(want.text)
		if err != nil {
			t.Fatal(err)
		}
		for i := 1; i <= 3; i++ {
			for _, a := range []netip.Addr{MuxAddresses(i).V4.Addr(), MuxAddresses(i).V6.Addr()} {
				for _, line := range want.perMux {
					if line = strings.ReplaceAll(line, "ADDR", a.String()); !strings.Contains(conf, line+"\n") {
						t.Errorf("%s: no line %q in\n%s", name, line, conf)
					}
				}
			}
		}
		for _, part := range want.otherwise {
			if !strings.Contains(conf, part) {
				t.Errorf("%s: no %q in\n%s", name, part, conf)
			}
		}
	}
}
