package agent

import (
	"fmt"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
)

// TestChecksAreTold: each check has its own results and the length of the latest run of equal ones.
// Void results do not end a run.
func TestChecksAreTold(t *testing.T) {
	states := []CheckState{
		{Check: lb.Check{Kind: lb.CheckTCP, Rise: 2, Fall: 3}, Number: 0, Alive: true},
		{Check: lb.Check{Kind: lb.CheckHTTP, TLS: true, Path: "/healthz", Port: 81, Rise: 1, Fall: 1, Through: lb.ThroughTunnel}, Number: 1},
	}
	var past health.History
	began := time.UnixMilli(1_000_000)
	for i, p := range []health.Past{
		{Check: 0, Good: true, Words: "connected"}, {Check: 1, Words: "status 503"}, {Check: 0, Words: "connection refused"},
		{Check: 0, Void: true, Words: "no route"}, {Check: 0, Words: "connection refused"}, {Check: 1, Good: true, Words: "status 200"},
		{Check: 5, Good: true, Words: "of a check that is no more"},
	} {
		p.At, p.Took = began.Add(time.Duration(i)*time.Second), time.Duration(i)*time.Millisecond
		past.Add(p)
	}
	var got []string
	for _, c := range ChecksTold(states, past.Results()) {
		got = append(got, fmt.Sprintf("%s alive %v good %d bad %d rise %d fall %d", c.Check, c.Alive, c.Good, c.Bad, c.Rise, c.Fall))
		for _, r := range c.Results {
			got = append(got, fmt.Sprintf("%d %v %v %v %s", r.Time.AsTime().Unix(), r.Took.AsDuration(), r.Good, r.Void, r.Words))
		}
	}
	want := []string{
		"check 1, tcp alive true good 0 bad 2 rise 2 fall 3",
		"1000 0s true false connected", "1002 2ms false false connection refused", "1003 3ms false true no route", "1004 4ms false false connection refused",
		"check 2, https /healthz port 81 through tunnel alive false good 1 bad 0 rise 1 fall 1",
		"1001 1ms false false status 503", "1005 5ms true false status 200",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("told %q, want %q", got, want)
	}
}
