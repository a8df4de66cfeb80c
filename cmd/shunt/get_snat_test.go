package main

import (
	"slices"
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

func TestSNATView(t *testing.T) {
	status := &apiv1.StatusResponse{Snat: []*apiv1.SnatStatus{
		{Service: "web", Tenant: "shop", Vip: "203.0.113.10", Dip: "10.20.1.11", Ports: []uint32{1024, 1032, 2048}},
		{Service: "web", Tenant: "shop", Vip: "203.0.113.10", Dip: "10.20.1.12", Gone: true},
		{Service: "mail", Tenant: "shop", Vip: "203.0.113.11", Dip: "10.20.1.13", Ports: []uint32{65528}},
	}, SnatVips: []*apiv1.SnatVIPStatus{{Vip: "203.0.113.10", DipLimit: 1024}, {Vip: "203.0.113.11", DipLimit: 64}}}
	v := snatView(status, "web")
	want := [][]string{
		{"SERVICE", "TENANT", "VIP", "DIP", "COUNT", "LIMIT", "PORTS"},
		{"web", "shop", "203.0.113.10", "10.20.1.11", "24", "1024", "1024-1039,2048-2055"},
		{"web", "shop", "203.0.113.10", "10.20.1.12 (gone)", "0", "1024", ""},
	}
	if !slices.EqualFunc(v.rows, want, slices.Equal) {
		t.Errorf("rows %q, want %q", v.rows, want)
	}
	if rows := snatView(status, "").rows; len(rows) != 4 || rows[3][5] != "64" || rows[3][6] != "65528-65535" {
		t.Errorf("rows of all services: %q", rows)
	}
}
