package main

import (
	"cmp"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/sim/balance"
)

// balanceFlags holds the flags that the simulations of schedulers share.
type balanceFlags struct {
	simFlags
	servers, muxes, cpus int
	refresh              []float64
	delay                time.Duration
	lost                 float64
	affinity             string
}

// register adds the flags.
func (f *balanceFlags) register(cmd *cobra.Command, servers int) {
	f.simFlags.register(cmd)
	flags := cmd.Flags()
	flags.IntVar(&f.servers, "servers", servers, "servers: 2 to 4000")
	flags.IntVar(&f.muxes, "muxes", 4, "muxes, each of which gets any connection with the same chance: 1 to 64")
	flags.IntVar(&f.cpus, "cpus", 2, "CPUs of a mux: 1 to 256")
	flags.Float64SliceVar(&f.refresh, "refresh", []float64{10, 100}, "how often a second hosts look at their servers, and muxes at what hosts told: 1 to 1000")
	flags.DurationVar(&f.delay, "delay", 20*time.Millisecond, "how long what a host tells is on its way to muxes: 0 to 10s")
	flags.Float64Var(&f.lost, "lost", 0, "share of what hosts tell that does not arrive at a mux: 0 to 0.9")
	flags.StringVar(&f.affinity, "affinity", lb.AffinityFlow, "flow: muxes see connections end; cookie: they do not")
}

func (f *balanceFlags) check() error {
	for _, c := range []struct {
		flag               string
		value, least, most int
	}{{"servers", f.servers, 2, 4000}, {"muxes", f.muxes, 1, 64}, {"cpus", f.cpus, 1, 256}} {
		if c.value < c.least || c.value > c.most {
			return fmt.Errorf("--%s: %d: must be %d to %d", c.flag, c.value, c.least, c.most)
		}
	}
	if f.delay < 0 || f.delay > 10*time.Second {
		return fmt.Errorf("--delay: %s: must be 0 to 10s", f.delay)
	}
	if !(f.lost >= 0 && f.lost <= 0.9) {
		return fmt.Errorf("--lost: %s: must be 0 to 0.9", number(f.lost))
	}
	if f.affinity != lb.AffinityFlow && f.affinity != lb.AffinityCookie {
		return fmt.Errorf("--affinity: %q: must be %s or %s", f.affinity, lb.AffinityFlow, lb.AffinityCookie)
	}
	return within("refresh", f.refresh, 1, 1000)
}

// within refuses an empty list, and values out of bounds.
func within(flag string, values []float64, least, most float64) error {
	if len(values) == 0 {
		return fmt.Errorf("--%s: must have a value", flag)
	}
	for _, v := range values {
		if !(v >= least && v <= most) {
			return fmt.Errorf("--%s: %s: must be %s to %s", flag, number(v), number(least), number(most))
		}
	}
	return nil
}

// round is a scheduler with a refresh rate. refresh is 0 if it does not use loads.
type round struct {
	scheduler string
	refresh   float64
}

// rounds returns all schedulers. One that uses loads appears once for each rate.
func (f *balanceFlags) rounds() (out []round) {
	for _, name := range balance.Schedulers {
		if e := (lb.Endpoint{Scheduler: name}); !e.Loaded() {
			out = append(out, round{name, 0})
			continue
		}
		for _, rate := range f.refresh {
			out = append(out, round{name, rate})
		}
	}
	return out
}

// short holds short names of schedulers for diagrams.
var short = map[string]string{lb.SchedulerLeastConnections: "least", lb.SchedulerWeightedRoundRobin: "weighted"}

// name is the label of the round in a diagram.
func (r round) name() string {
	name := cmp.Or(short[r.scheduler], r.scheduler)
	if r.refresh == 0 {
		return name
	}
	return name + ", " + number(r.refresh) + " Hz"
}

// setup returns the simulated cluster of a round.
func (f *balanceFlags) setup(r round) balance.Setup {
	rate := r.refresh
	if rate == 0 {
		rate = f.refresh[0]
	}
	return balance.Setup{
		Servers: f.servers, Muxes: f.muxes, CPUs: f.cpus, Refresh: rate, Delay: f.delay, Lost: f.lost, Blind: f.affinity == lb.AffinityCookie, Seed: f.seed,
	}
}

// each calls do for 0 to n-1, on as many goroutines as there are CPUs.
func each(n int, do func(i int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		all.Go(func() {
			for i := next.Add(1) - 1; int(i) < n; i = next.Add(1) - 1 {
				do(int(i))
			}
		})
	}
	all.Wait()
}

// rounded rounds a figure to the given number of decimals.
func rounded(v float64, decimals int) float64 {
	scale := 1.0
	for range decimals {
		scale *= 10
	}
	return float64(int64(v*scale+0.5)) / scale
}
