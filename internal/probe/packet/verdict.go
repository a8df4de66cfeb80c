package packet

import (
	"fmt"
	"strconv"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// outcome holds all inputs of a verdict.
type outcome struct {
	result  dataplane.ProbeResult
	sent    int // number of SYNs
	timeout time.Duration
	// own: silence is the server's fault, because it answered by packets before, or because no
	// other prober could probe it.
	own bool
}

// statusWords are the texts of all statuses.
var statusWords = func() (w [1000]string) {
	for i := range w {
		w[i] = "status " + strconv.Itoa(i)
	}
	return w
}()

// numbers are the texts of numbers of SYNs.
var numbers = [...]string{"no SYN", "one SYN", "two SYNs", "three SYNs", "four SYNs"}

// verdict returns the verdict and text for an outcome: the probe has a final result, or timed out.
// good is the set of good statuses.
func verdict(o outcome, good lb.StatusSet) (v probe.Verdict, words string) {
	within := func() string { return strconv.FormatInt(o.timeout.Milliseconds(), 10) + " ms" }
	switch o.result.State {
	case dataplane.ProbeAnswered:
		return probe.Good, "connected"
	case dataplane.ProbeStatus:
		status := int(o.result.Status)
		if status >= len(statusWords) {
			return probe.Unsure, fmt.Sprintf("status %d", status)
		}
		if good == lb.DefaultHealthStatus && status >= 200 && status <= 399 || good.Has(status) {
			return probe.Good, statusWords[status]
		}
		return probe.Bad, statusWords[status]
	case dataplane.ProbeOdd:
		return probe.Unsure, "connected, but the answer begins with no whole status line"
	case dataplane.ProbeStuck:
		return probe.Unsure, "connected, but the device has no room for the request"
	case dataplane.ProbeClosed:
		return probe.Bad, "connected, but closed without an answer"
	case dataplane.ProbeRefused:
		return probe.Bad, "connection refused"
	case dataplane.ProbeBroken:
		return probe.Bad, "connected, but reset"
	case dataplane.ProbeConnected:
		return probe.Bad, "connected, but no bytes within " + within()
	case dataplane.ProbeUnreachable:
		return probe.Bad, "host unreachable"
	}
	words = "no answer to " + numbers[min(o.sent, len(numbers)-1)] + " within " + within()
	if o.own {
		return probe.Bad, words
	}
	return probe.Unsure, words
}

// silent reports whether a probe in this state had no response of its server.
func silent(s dataplane.ProbeState) bool {
	return s == dataplane.ProbeSilent || s == dataplane.ProbeUnreachable
}
