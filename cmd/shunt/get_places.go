package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// everyService selects the placements of all services.
const everyService = "*"

// placeRecord is a row of the placement view.
type placeRecord struct {
	Service string `json:"service"`
	VIP     string `json:"vip"`
	// Replicas is the number of muxes that the VIP is configured for. 0 means every mux.
	Replicas uint32 `json:"replicas"`
	// Every means that the VIP is on every mux: it has no placement, or none has been decided yet.
	Every bool     `json:"every"`
	Muxes []string `json:"muxes"`
	// Leaving lists the muxes that serve the VIP until its new muxes do.
	Leaving []string `json:"leaving"`
	// Missing is why the VIP has fewer muxes than configured.
	Missing string `json:"missing"`
}

// placeView has one row per VIP, of one service or of all services, ordered by service.
func placeView(status *apiv1.StatusResponse, service string) view {
	records := []placeRecord{}
	rows := [][]string{{"SERVICE", "VIP", "REPLICAS", "MUXES", "LEAVING", "MISSING"}}
	places := slices.Clone(status.GetPlacements())
	slices.SortStableFunc(places, func(a, b *apiv1.VIPPlacement) int { return strings.Compare(a.GetService(), b.GetService()) })
	for _, p := range places {
		if service != "" && p.GetService() != service {
			continue
		}
		records = append(records, placeRecord{
			Service: p.GetService(), VIP: p.GetVip(), Replicas: p.GetReplicas(), Every: p.GetEvery(),
			Muxes: append([]string{}, p.GetMuxes()...), Leaving: append([]string{}, p.GetLeaving()...), Missing: p.GetMissing(),
		})
		replicas, muxes, missing := fmt.Sprintf("%d of %d", len(p.GetMuxes()), p.GetReplicas()), cmp.Or(strings.Join(p.GetMuxes(), ","), "none"), p.GetMissing()
		if p.GetEvery() {
			muxes, replicas = "every one", ""
			if p.GetReplicas() > 0 {
				replicas, missing = fmt.Sprint(p.GetReplicas()), "not placed yet"
			}
		}
		rows = append(rows, []string{p.GetService(), p.GetVip(), replicas, muxes, strings.Join(p.GetLeaving(), ","), missing})
	}
	return view{rows, records}
}
