package main

import (
	"fmt"
	"strings"

	"github.com/shuntlb/shunt/internal/lb"
)

// snat writes the leases of the service's VIP ports for outbound connections. It writes nothing for
// a service without SNAT.
func (d *description) snat(s *lb.Service) {
	for _, v := range d.status.GetSnatVips() {
		if v.GetService() != s.Name {
			continue
		}
		rows := [][]string{{"DIP", "PORTS", "RANGES"}}
		for _, r := range snatView(d.status, s.Name).records.([]snatRecord) {
			if r.VIP != v.GetVip() {
				continue
			}
			dip := r.DIP
			if r.Gone {
				dip += " (gone)"
			}
			rows = append(rows, []string{dip, fmt.Sprintf("%d/%d", r.Count, r.Limit), strings.Join(r.Ports, ",")})
		}
		d.printf("\nOutbound connections by %s\n", v.GetVip())
		d.printf("  %d ports leased, %d free, %d at rest; tenant %s has %s\n", v.GetLeased(), v.GetFree(), v.GetResting(), v.GetTenant(), ofQuota(int(v.GetTenantLeased()), v.GetTenantLimit()))
		d.table(rows)
		if s.Outbound() {
			d.printf("  route: %s\n", d.route(v.GetVip()))
		}
	}
}
