package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
)

func TestParseManagers(t *testing.T) {
	got, err := ParseManagers("10.0.0.1:8443, m2:8443,[2001:db8::1]:1,m2:8443")
	if want := []string{"10.0.0.1:8443", "m2:8443", "[2001:db8::1]:1"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"", "a", "a:", ":1", "a:1,", "a:1,,b:1"} {
		if got, err := ParseManagers(bad); err == nil {
			t.Errorf("%q: %q, want an error", bad, got)
		}
	}
}

// round returns the managers that a node tries when every attempt fails immediately, and the bounds
// of its waits.
func round(m *managers, learnt []string, attempts int) (tried []string, bounds []time.Duration) {
	now := time.Unix(0, 0)
	for range attempts {
		bounds = append(bounds, m.next(learnt, now, 1))
		tried = append(tried, m.present)
		m.ended(0, errors.New("refused"), now, 0)
	}
	return tried, bounds
}

func TestAllManagersAreTriedBeforeItWaits(t *testing.T) {
	m := &managers{name: "mux1", given: []string{"a:1", "b:1", "c:1"}}
	tried, bounds := round(m, nil, 9)
	first := slices.Sorted(slices.Values(tried[:3]))
	if !slices.Equal(first, m.given) || !slices.Equal(tried[:3], tried[3:6]) {
		t.Errorf("tried %v", tried)
	}
	want := []time.Duration{atOnce, atOnce, atOnce, roundWait, roundWait, roundWait, 2 * roundWait, 2 * roundWait, 2 * roundWait}
	if !slices.Equal(bounds, want) {
		t.Errorf("waits %v, want %v", bounds, want)
	}
	if _, bounds := round(m, nil, 100); bounds[99] != maxWait {
		t.Errorf("waits %v, want at most %v", bounds, maxWait)
	}
	m.ended(time.Hour, nil, time.Unix(0, 0), 0)
	if _, bounds := round(m, nil, 1); bounds[0] != atOnce {
		t.Errorf("after a stable connection: waits %v", bounds)
	}
}

func TestLearntManagersComeFirst(t *testing.T) {
	m := &managers{name: "mux1", given: []string{"old:1", "a:1"}}
	tried, _ := round(m, []string{"a:1", "b:1", "c:1"}, 4)
	if got := slices.Sorted(slices.Values(tried[:3])); !slices.Equal(got, []string{"a:1", "b:1", "c:1"}) || tried[3] != "old:1" {
		t.Errorf("tried %v", tried)
	}
	// The set is replaced while the node uses a manager that is no longer in it.
	m.present, m.failed = "old:1", 0
	if tried, _ := round(m, []string{"x:1"}, 1); tried[0] != "x:1" {
		t.Errorf("tried %v", tried)
	}
}

func TestNodesSpreadOverManagers(t *testing.T) {
	learnt, count := []string{"a:1", "b:1", "c:1"}, map[string]int{}
	for i := range 3000 {
		m := &managers{name: fmt.Sprintf("host%d", i), given: learnt}
		m.next(learnt, time.Unix(0, 0), 0)
		count[m.present]++
	}
	for a, n := range count {
		if n < 900 || n > 1100 {
			t.Errorf("%s has %d of 3000 nodes: %v", a, n, count)
		}
	}
}

func TestOverloadedManagerIsLeftAlone(t *testing.T) {
	busy := connect.NewError(connect.CodeResourceExhausted, errors.New("overloaded"))
	busy.Meta().Set(RetryAfterHeader, "2s")
	m := &managers{name: "mux1", given: []string{"a:1", "b:1"}}
	now := time.Unix(0, 0)
	m.next(nil, now, 0)
	first := m.present
	m.ended(0, fmt.Errorf("stream: %w", busy), now, 1)
	for range 3 {
		if m.next(nil, now, 0); m.present == first {
			t.Fatalf("goes back to %s, which is overloaded", first)
		}
	}
	m.ended(0, busy, now, 0)
	if wait := m.next(nil, now, 0); wait != 2*time.Second || m.present == first {
		t.Errorf("both are overloaded: waits %v for %s, want 2s for the one that is free first", wait, m.present)
	}
	if wait := m.next(nil, now.Add(3*time.Second), 0); wait != 0 || m.present != first {
		t.Errorf("3 s later: waits %v for %s", wait, m.present)
	}
}
