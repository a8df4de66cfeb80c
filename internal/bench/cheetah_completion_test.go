package bench

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// Requests come in their order, as many and with as much work as keep servers busy for that share of their time.
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
