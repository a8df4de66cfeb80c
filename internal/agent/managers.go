package agent

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
)

// Waiting times between attempts to reach a manager.
const (
	// atOnce spreads the first attempts of nodes that lost the same manager.
	atOnce = 100 * time.Millisecond
	// roundWait bounds the wait after the first round over all managers failed, because a restart
	// takes a second or two. It doubles with every round up to maxWait.
	roundWait = 250 * time.Millisecond
)

// RetryAfterHeader is the metadata of a ResourceExhausted error with the time for which the node
// must not retry at this manager: a duration like "1.5s".
const RetryAfterHeader = "shunt-retry-after"

// ParseManagers parses addresses of managers, "host:port" separated by commas.
func ParseManagers(s string) ([]string, error) {
	var out []string
	for _, a := range strings.Split(s, ",") {
		a = strings.TrimSpace(a)
		host, port, err := net.SplitHostPort(a)
		if err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("%q: must be ADDRESS:PORT, or several of them separated by commas", a)
		}
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out, nil
}

// managers selects the manager that a node connects to next, and when.
type managers struct {
	name string
	// given are the addresses from the flag.
	given []string
	// present is the address in use; empty before the first.
	present string
	// failed counts the attempts since a connection was stable.
	failed int
	// barred are overloaded managers, and until when not to retry them.
	barred map[string]time.Time
}

// list returns the addresses in the order of a round: those in the plan, then those from the flag.
// Each node starts at a different index, derived from its name, so that nodes spread over the
// managers.
func (m *managers) list(learnt []string) []string {
	first := learnt
	if len(first) == 0 {
		first = m.given
	}
	h := fnv.New32a()
	h.Write([]byte(m.name))
	at := int(h.Sum32() % uint32(len(first)))
	out := slices.Concat(first[at:], first[:at])
	for _, a := range m.given {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// next selects the manager after the current one, skips barred ones, and returns how long to wait
// before. roll is a random number in [0, 1).
func (m *managers) next(learnt []string, now time.Time, roll float64) time.Duration {
	all := m.list(learnt)
	from := slices.Index(all, m.present) + 1
	if m.failed == 0 && !slices.Contains(learnt, m.present) && len(learnt) > 0 {
		from = 0 // one from the flag, or one of a set that was replaced
	}
	var earliest time.Time
	for i := range all {
		a := all[(from+i)%len(all)]
		until := m.barred[a]
		if !until.After(now) {
			m.present = a
			return m.pause(len(all), roll)
		}
		if earliest.IsZero() || until.Before(earliest) {
			earliest, m.present = until, a
		}
	}
	return max(earliest.Sub(now), m.pause(len(all), roll))
}

// pause is short until all managers were tried. After that it is full jitter with a bound that
// doubles.
func (m *managers) pause(count int, roll float64) time.Duration {
	bound := atOnce
	if round := m.failed / count; round > 0 {
		bound = min(roundWait<<min(round-1, 10), maxWait)
	}
	return time.Duration(roll * float64(bound))
}

// ended records how an attempt ended: how long its connection lived, and its error. roll is a
// random number in [0, 1).
func (m *managers) ended(lived time.Duration, err error, now time.Time, roll float64) {
	if lived > stable {
		m.failed = 0
	} else {
		m.failed++
	}
	if hint := retryAfter(err); hint > 0 {
		if m.barred == nil {
			m.barred = map[string]time.Time{}
		}
		m.barred[m.present] = now.Add(hint + time.Duration(roll*float64(hint)/2))
	}
}

// retryAfter returns for how long not to retry at an overloaded manager; 0 for other errors.
func retryAfter(err error) time.Duration {
	var ce *connect.Error
	if !errors.As(err, &ce) || ce.Code() != connect.CodeResourceExhausted {
		return 0
	}
	d, err := time.ParseDuration(ce.Meta().Get(RetryAfterHeader))
	if err != nil || d < 0 {
		return maxWait
	}
	return min(d, time.Minute)
}

// jitter returns d plus or minus a quarter.
func jitter(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2) }
