package agent

import (
	"net"
	"testing"
)

func TestLinksOf(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if got := LinksOf("lo", "no-such-device"); len(got) != 1 || got[0] != (Link{"lo", lo.MTU}) || lo.MTU <= 0 {
		t.Errorf("%v, want lo of %d", got, lo.MTU)
	}
}

func TestMTUFault(t *testing.T) {
	for _, c := range []struct {
		planned uint32
		links   []Link
		want    string
	}{
		{9000, []Link{{"eth0", 1500}, {"eth1", 9000}, {"eth2", 8999}}, "mtu 9000: eth0 has 1500, eth2 has 8999"},
		{1500, []Link{{"eth0", 1500}, {"eth1", 9000}}, ""},
		{0, []Link{{"eth0", 1500}}, ""}, // no plan
		{9000, []Link{{"eth0", 0}}, ""}, // not known
		{9000, nil, ""},
	} {
		if got := MTUFault(c.planned, c.links); got != c.want {
			t.Errorf("%d, %v: %q, want %q", c.planned, c.links, got, c.want)
		}
	}
}
