package main

import (
	"fmt"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/snat"
)

// snatRecord is a row of the view of ports for outbound connections.
type snatRecord struct {
	Service string `json:"service"`
	Tenant  string `json:"tenant"`
	VIP     string `json:"vip"`
	DIP     string `json:"dip"`
	// Count is how many ports the DIP has, Limit how many it may have. Ports holds spans of them,
	// first and last.
	Count int      `json:"count"`
	Limit int      `json:"limit"`
	Ports []string `json:"ports"`
	// Gone means that the DIP no longer belongs to the service.
	Gone bool `json:"gone"`
}

// snatView has one row per DIP, of one service or of all services, ordered by VIP.
func snatView(status *apiv1.StatusResponse, service string) view {
	records := []snatRecord{}
	rows := [][]string{{"SERVICE", "TENANT", "VIP", "DIP", "COUNT", "LIMIT", "PORTS"}}
	limits := map[string]int{}
	for _, v := range status.GetSnatVips() {
		limits[v.GetVip()] = int(v.GetDipLimit())
	}
	for _, s := range status.GetSnat() {
		if service != "" && s.GetService() != service {
			continue
		}
		spans, count := portSpans(s.GetPorts()), len(s.GetPorts())*snat.RangePorts
		records = append(records, snatRecord{
			Service: s.GetService(), Tenant: s.GetTenant(), VIP: s.GetVip(), DIP: s.GetDip(), Count: count, Limit: limits[s.GetVip()], Ports: spans, Gone: s.GetGone(),
		})
		dip := s.GetDip()
		if s.GetGone() {
			dip += " (gone)"
		}
		rows = append(rows, []string{s.GetService(), s.GetTenant(), s.GetVip(), dip, fmt.Sprint(count), fmt.Sprint(limits[s.GetVip()]), strings.Join(spans, ",")})
	}
	return view{rows, records}
}

// portSpans merges adjacent port ranges, given by their first ports in order.
func portSpans(firsts []uint32) []string {
	out := []string{}
	for i := 0; i < len(firsts); {
		j := i + 1
		for j < len(firsts) && firsts[j] == firsts[j-1]+snat.RangePorts {
			j++
		}
		out = append(out, fmt.Sprintf("%d-%d", firsts[i], firsts[j-1]+snat.RangePorts-1))
		i = j
	}
	return out
}
