package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// DemoTopology returns the topology of the demo: three muxes, so that two share the traffic when
// one is lost, and a spare host.
func DemoTopology() Topology {
	t := DefaultTopology()
	t.Muxes = 3
	t.Hosts.Count = 4
	return t
}

// DemoOptions configure a demo.
type DemoOptions struct {
	// Screen prints the progress.
	Screen *Screen
	// Short halves the time that every event is watched.
	Short bool
}

// Rates and times of a demo.
const (
	demoRate    = 200 // requests per second over both families
	demoTimeout = 500 * time.Millisecond
	demoWatch   = 4 * time.Second
	demoReport  = 250 * time.Millisecond
)

// Outcome is one row of the demo's table.
type Outcome struct {
	Event  string
	Rule   string
	Report Report
	// Outcome is one row of the demo's table.
	Broken string
}

// errVerdict is the error of a demo that ran but did not pass.
var errVerdict = errors.New("verdict: FAIL")

// Demo runs the guided demo on a lab that is up. Its error is about the demo itself, or the
// verdict.
func Demo(ctx context.Context, l *Lab, o DemoOptions) error {
	d := &demo{lab: l, screen: o.Screen, watch: demoWatch, web: webService{
		VMs: []string{VMName(1, 1), VMName(2, 1), VMName(3, 1)}, Draining: map[string]bool{},
	}}
	if o.Short {
		d.watch /= 2
	}
	if err := d.begin(ctx); err != nil {
		return err
	}
	err := d.events(ctx)
	_, stopErr := d.load.Stop()
	if err := errors.Join(err, stopErr); err != nil {
		return err
	}
	d.screen.Table(d.outcomes)
	for _, row := range d.outcomes {
		if row.Broken != "" {
			return errVerdict
		}
	}
	return nil
}

// demo is a running demo.
type demo struct {
	lab      *Lab
	screen   *Screen
	watch    time.Duration
	web      webService
	load     *Loader
	outcomes []Outcome
}

// begin applies the service, waits for the first response of each family and starts the traffic.
func (d *demo) begin(ctx context.Context) error {
	started := time.Now()
	if err := d.apply(ctx); err != nil {
		return err
	}
	for _, target := range webTargets() {
		if err := d.lab.FirstAnswer(ctx, "client1", target); err != nil {
			return err
		}
	}
	d.screen.Line("service web: first answers from %s and %s %d ms after `shunt apply`",
		webTargets()[0], webTargets()[1], time.Since(started).Milliseconds())
	if err := d.everywhere(ctx); err != nil {
		return err
	}
	load, err := d.lab.StartLoad("client1", LoadOptions{Targets: webTargets(), Rate: demoRate, Timeout: demoTimeout, ReportEvery: demoReport})
	d.load = load
	return err
}

// apply stores the service at the manager and writes its YAML next to the lab for users to change.
func (d *demo) apply(ctx context.Context) error {
	text, err := d.web.yaml(d.lab.Topology)
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.yamlPath(), []byte(text), 0o644); err != nil {
		return err
	}
	_, err = d.lab.Apply(ctx, text)
	return err
}

func (d *demo) yamlPath() string { return filepath.Join(Dir(d.lab.Topology.Name), "web.yaml") }

// everywhere waits until the router has every mux as next hop of both VIPs, so that each event
// starts from a complete lab.
func (d *demo) everywhere(ctx context.Context) error {
	return d.lab.WaitRoutes(ctx, webVIP, d.lab.Topology.Muxes)
}

// event runs do under traffic, watches the effect, and judges it.
func (d *demo) event(ctx context.Context, name, rule string, do func(context.Context) error, judge func(Report) string) error {
	if err := d.load.Mark(name); err != nil {
		return err
	}
	if _, err := d.load.Window(ctx); err != nil { // requests before it belong to no event
		return err
	}
	d.screen.Event(name)
	before, _ := d.lab.ask(ctx)
	end := time.NewTimer(d.watch)
	defer end.Stop()
	if err := do(ctx); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := d.show(ctx, before, end.C); err != nil {
		return err
	}
	if err := d.load.Mark("between"); err != nil {
		return err
	}
	report, err := d.load.Window(ctx)
	if err != nil {
		return err
	}
	row := Outcome{Event: name, Rule: rule, Report: report, Broken: judge(report)}
	d.outcomes = append(d.outcomes, row)
	d.screen.Row(row)
	return nil
}

// show repaints the live line until the time is over.
func (d *demo) show(ctx context.Context, before *apiv1.StatusResponse, end <-chan time.Time) error {
	tick := time.NewTicker(demoReport)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end:
			d.screen.Live(d.load.Totals(), carried(before, d.now(ctx)), true)
			return nil
		case <-tick.C:
			d.screen.Live(d.load.Totals(), carried(before, d.now(ctx)), false)
		}
	}
}

func (d *demo) now(ctx context.Context) *apiv1.StatusResponse {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s, _ := d.lab.ask(ctx)
	return s
}

// carried counts the packets that each mux sent to servers between two reports.
func carried(before, after *apiv1.StatusResponse) map[string]uint64 {
	sum := func(s *apiv1.StatusResponse) map[string]uint64 {
		packets := map[string]uint64{}
		for _, n := range s.GetNodes() {
			if n.GetRole() != string(KindMux) {
				continue
			}
			for _, m := range n.GetMembers() {
				packets[n.GetName()] += m.GetPackets()
			}
		}
		return packets
	}
	old, delta := sum(before), map[string]uint64{}
	for name, packets := range sum(after) {
		if packets > old[name] {
			delta[name] = packets - old[name]
		}
	}
	return delta
}
