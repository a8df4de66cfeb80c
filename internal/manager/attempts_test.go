package manager

import (
	"fmt"
	"testing"
	"time"
)

// TestFailuresAreTheirSources checks a client that fails from every /64 of a /48, or from more
// sources than the table holds. It gets a bounded number of attempts from the /48, does not delay
// other clients, and is checked again after a while.
func TestFailuresAreTheirSources(t *testing.T) {
	a, now := newAttempts(), time.Unix(1000, 0)
	looks := 0
	for i := range 1 << 17 {
		from := fmt.Sprintf("[2001:db8:1:%x::1]:1", i&0xffff)
		if a.wait(from, now) == 0 {
			looks++
			a.fail(from, now)
		}
	}
	if most := 16*attemptsBurst + 1; looks > most {
		t.Errorf("a /48 got %d looks: at most %d", looks, most)
	}
	for i := range 1 << 14 {
		for _, from := range []string{fmt.Sprintf("192.0.%d.%d:1", 2+i>>8, i&255), fmt.Sprintf("[2001:db8:%x:1::1]:1", 2+i)} {
			if wait := a.wait(from, now); wait != 0 {
				t.Fatalf("%s waits for %s because of others", from, wait)
			}
		}
	}
	if wait := a.wait("[2001:db8:1::2]:1", now.Add(2*time.Second)); wait != 0 {
		t.Errorf("after 2 s the /48 still waits for %s", wait)
	}
	// Each of many sources fails many times.
	for i := range 3 * attemptSources {
		from := fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255)
		for range attemptsBurst + 1 {
			a.fail(from, now)
		}
		if n := len(a.sources); n > attemptSources {
			t.Fatalf("%d sources are remembered: at most %d", n, attemptSources)
		}
	}
	if wait := a.wait("198.51.100.1:1", now); wait != 0 {
		t.Errorf("a stranger to all of that waits for %s", wait)
	}
	if wait := a.wait(fmt.Sprintf("10.0.%d.%d:1", 1<<8-1, 255), now); wait < 0 {
		t.Errorf("waits for %s", wait)
	}
}
