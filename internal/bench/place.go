package bench

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/place"
)

// The number of muxes, VIPs and replicas that are placed.
const (
	placeMuxes    = 200
	placeVIPs     = 100_000
	placeReplicas = 3
	placeZones    = 3
	placeRounds   = 11
)

const fullPlacement = "full-100k-200"

var placeSuite = Suite{
	Name:  "place",
	Title: "VIPs on muxes",
	About: "100,000 VIPs with 3 replicas each on 200 muxes in 3 zones, one CPU. `full-100k-200`: all of them are placed from nothing. " +
		"`one-vip`: one VIP more. `mux-leaves`: one mux goes down, its VIPs go to others. `mux-joins`: one mux comes, and " +
		"takes its part of the VIPs over. The clock covers telling the placer and its decision; nothing is stored or sent. " +
		"`changes` is how many VIPs have other muxes than before.",
	Cases:   []string{fullPlacement, "one-vip", "mux-leaves", "mux-joins"},
	Plotted: []string{"ms"}, Unit: "ms",
	Takes: 30 * time.Second, TakesShort: 2 * time.Second,
	Goals: []Goal{atMost(fullPlacement, "ms", 1000)},
	run:   runPlace,
}

func runPlace(ctx context.Context, o Options, emit func(Row)) error {
	ms, changes := map[string][]float64{}, map[string]int{}
	for i := range o.rounds(placeRounds) {
		if err := ctx.Err(); err != nil {
			return err
		}
		o.progressf("place: repetition %d", i+1)
		p := place.New(place.DefaultBounds)
		step := func(name string, tell func()) {
			start := time.Now()
			tell()
			changes[name] = len(p.Step())
			ms[name] = append(ms[name], float64(time.Since(start))/1e6)
		}
		step(fullPlacement, func() {
			for i := range placeMuxes {
				p.SetMux(placeMux(i))
			}
			for i := range placeVIPs {
				p.SetVIP(placeVIP(i))
			}
		})
		step("one-vip", func() { p.SetVIP(placeVIP(placeVIPs)) })
		step("mux-leaves", func() {
			gone := placeMux(0)
			gone.Down = true
			p.SetMux(gone)
		})
		step("mux-joins", func() { p.SetMux(placeMux(placeMuxes)) })
		if short := len(p.Problems()); short > 0 {
			return fmt.Errorf("%d VIPs have fewer muxes than they ask for", short)
		}
	}
	for _, name := range []string{fullPlacement, "one-vip", "mux-leaves", "mux-joins"} {
		if o.wants(name) {
			row := timeRow(name, ms[name])
			row.Fields = append(row.Fields, Field{"changes", changes[name]})
			emit(row)
		}
	}
	return nil
}

func placeMux(i int) place.Mux {
	return place.Mux{Name: fmt.Sprintf("mux%d", i), Zone: fmt.Sprint(i % placeZones)}
}

func placeVIP(i int) place.VIP {
	return place.VIP{Key: place.Key{VIP: netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)})}, Replicas: placeReplicas}
}
