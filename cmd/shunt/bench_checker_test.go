package main

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/bench"
	"github.com/shuntlb/shunt/internal/bench/checker"
)

// The checker accepts the flags that the bench passes, and exits when its standard input ends.
func TestBenchCheckerTakesJobs(t *testing.T) {
	job := checker.Job{
		Engine: "go", Kind: checker.HTTP, First: netip.MustParseAddr("192.0.2.1"), Port: 80, Targets: 3, Interval: time.Second,
		Timeout: time.Second, InFlight: 2, Device: "lo",
	}
	var out, errs bytes.Buffer
	args := append([]string{bench.CheckerCommand}, job.Args()...)
	if code := run(args, strings.NewReader("report\n"), &out, &errs); code != exitOK {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	const empty = `{"good":0,"bad":0,"wall_ns":0}` + "\n"
	if out.String() != empty+empty {
		t.Errorf("answers %q, want one when it is ready and one report", out.String())
	}
	for _, c := range []struct {
		change func(*checker.Job)
		want   string
	}{
		{func(j *checker.Job) { j.Kind = "udp" }, `--kind: "udp": must be tcp or http`},
		{func(j *checker.Job) { j.First = netip.MustParseAddr("::1") }, `--first: "::1": must be an IPv4 address`},
		{func(j *checker.Job) { j.Engine = "x" }, `--engine: "x": is unknown`},
	} {
		wrong := job
		c.change(&wrong)
		errs.Reset()
		if code := run(append([]string{bench.CheckerCommand}, wrong.Args()...), strings.NewReader(""), &out, &errs); code == exitOK || !strings.Contains(errs.String(), c.want) {
			t.Errorf("exit code %d, says %q, want %q", code, errs.String(), c.want)
		}
	}
}
