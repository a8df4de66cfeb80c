package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Requests are in order, and their number and work keep servers busy for the given share of time.
func TestDueRequests(t *testing.T) {
	for _, w := range completionWorkloads {
		for _, busy := range completionBusy {
			const servers, during = 8, 2000 * time.Second
			due := dueRequests(rand.New(rand.NewPCG(1, 2)), w.work, servers, busy, during)
			var sum, last time.Duration
			for i, d := range due {
				if d.At < last || d.At >= during || d.Work <= 0 {
					t.Fatalf("%s, %v: request %d is %+v, the one before was due at %s", w.name, busy, i, d, last)
				}
				last, sum = d.At, sum+d.Work
			}
			if got := float64(sum) / float64(servers*during); math.Abs(got-busy) > 0.02 {
				t.Errorf("%s: servers are busy %v of their time, want %v", w.name, got, busy)
			}
		}
	}
}

// Every scheduler has its own source ports, more than the requests in a minute of the busiest run,
// and AWRR is one of them.
func TestCompletionEngines(t *testing.T) {
	if last := int(vipPorts.first) + len(completionEngines)*completionPorts - 1; last > int(vipPorts.last) {
		t.Errorf("source ports end at %d", last)
	}
	sizes := Options{}.cheetahSizes()
	for _, w := range completionWorkloads {
		if n := len(dueRequests(rand.New(rand.NewPCG(1, 2)), w.work, sizes.workers, 0.9, time.Minute)); n > completionPorts {
			t.Errorf("%s: %d requests in a minute, and %d ports", w.name, n, completionPorts)
		}
	}
	if !slices.ContainsFunc(completionEngines, func(e struct{ name, affinity, scheduler string }) bool { return e.scheduler == lb.SchedulerAdaptive }) {
		t.Error("adaptive is not compared")
	}
}

// Every workload has a diagram, and every scheduler a line with a point for each load.
func TestCompletionPanels(t *testing.T) {
	var rows []Row
	for _, w := range completionWorkloads {
		for i, busy := range completionBusy {
			for _, e := range completionEngines {
				rows = append(rows, Row{completionCase, []Field{{workloadField, w.name}, {busyField, busy}, {engineField, e.name}, {tookField, 100.0 * float64(i+1)}}})
			}
		}
	}
	panels := completionPanels(rows)
	if len(panels) != len(completionWorkloads) {
		t.Fatalf("%d diagrams", len(panels))
	}
	for _, p := range panels {
		if len(p.Lines) != len(completionEngines) || len(p.Ticks) != len(completionBusy) {
			t.Errorf("%s: %d lines, %d ticks", p.Title, len(p.Lines), len(p.Ticks))
		}
		for _, l := range p.Lines {
			if len(l.X) != len(completionBusy) || l.X[0] != completionBusy[0] || l.Y[1] != 200 {
				t.Errorf("%s, %s: %v, %v", p.Title, l.Name, l.X, l.Y)
			}
		}
	}
	if files := cheetahFiles(rows); len(files) != 1 || files[0].name != "lab-completion" {
		t.Errorf("files are %+v", files)
	}
}
