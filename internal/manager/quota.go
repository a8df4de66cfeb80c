package manager

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"
)

// Limits of callers who fail to prove who they are, for each source address (an IPv6 /64 is one).
const (
	// attemptsBurst: a mistaken program may fail for a minute, once a second, until anything is held against it.
	attemptsBurst = 60
	// attemptsPerSecond is how fast failures are forgotten.
	attemptsPerSecond = 1
	// attemptSlots × 16 bytes are 64 KiB, whatever comes. Sources that meet in a slot share it.
	attemptSlots = 4096
)

// attempts counts failures by source address in memory of fixed size.
type attempts struct {
	seed maphash.Seed

	mu    sync.Mutex
	slots [attemptSlots]attemptSlot
}

// attemptSlot is how many failures are not forgotten, as of a time.
type attemptSlot struct {
	failures float64
	at       int64 // nanoseconds since 1970
}

func newAttempts() *attempts { return &attempts{seed: maphash.MakeSeed()} }

// wait is how long the source at the address and port must wait until it is looked at again; 0 is not at all.
func (a *attempts) wait(from string, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.slotLocked(from, now).wait()
}

// fail counts a failure. first tells that it is the one by which the source has to wait.
func (a *attempts) fail(from string, now time.Time) (wait time.Duration, first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.slotLocked(from, now)
	first = s.wait() == 0
	s.failures = min(s.failures+1, attemptsBurst+1)
	return s.wait(), first
}

func (a *attempts) slotLocked(from string, now time.Time) *attemptSlot {
	s := &a.slots[maphash.Comparable(a.seed, source(from))%attemptSlots]
	if passed := now.UnixNano() - s.at; passed > 0 {
		s.failures = max(0, s.failures-float64(passed)/float64(time.Second)*attemptsPerSecond)
	}
	s.at = now.UnixNano()
	return s
}

func (s *attemptSlot) wait() time.Duration {
	if s.failures <= attemptsBurst {
		return 0
	}
	return max(1, time.Duration((s.failures-attemptsBurst)/attemptsPerSecond*float64(time.Second)))
}

// source is what shares a slot for sure: an IPv4 address, or the /64 of an IPv6 one.
func source(from string) netip.Prefix {
	ap, err := netip.ParseAddrPort(from)
	if err != nil {
		return netip.Prefix{}
	}
	addr := ap.Addr().Unmap().WithZone("")
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	p, _ := addr.Prefix(bits)
	return p
}

// dryRunsPerMinute is what a tenant with a quota of changes has of dry runs at least: each is computed as a change is, in the same queue, and
// keeps nothing. One a second is what a program does that looks before each step.
const dryRunsPerMinute = 60

// rates are the changes of tenants, or their dry runs, as token buckets: a tenant may make its quota of a minute at once, and gets it back
// evenly.
type rates struct {
	mu      sync.Mutex
	tenants map[string]*bucket
}

// bucket is how many changes are left, as of a time.
type bucket struct {
	left float64
	at   time.Time
}

// manyBuckets is how many there may be until those that are full are forgotten: they say nothing.
const manyBuckets = 1024

func newRates() *rates { return &rates{tenants: map[string]*bucket{}} }

// take uses up one of perMinute changes; 0 is no limit. When there is none left it returns how long until there is.
func (r *rates) take(tenant string, perMinute uint32, now time.Time) time.Duration {
	if perMinute == 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.tenants[tenant]
	if b == nil {
		r.forgetLocked(now)
		b = &bucket{float64(perMinute), now}
		r.tenants[tenant] = b
	}
	perSecond := float64(perMinute) / 60
	if passed := now.Sub(b.at); passed > 0 {
		b.left += passed.Seconds() * perSecond
		b.at = now
	}
	b.left = min(b.left, float64(perMinute))
	if b.left < 1 {
		return max(1, time.Duration((1-b.left)/perSecond*float64(time.Second)))
	}
	b.left--
	return 0
}

// giveBack undoes a take whose request changed nothing.
func (r *rates) giveBack(tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.tenants[tenant]; b != nil {
		b.left++
	}
}

// forgetLocked drops buckets that have filled up, whatever their quota: a minute does that.
func (r *rates) forgetLocked(now time.Time) {
	if len(r.tenants) < manyBuckets {
		return
	}
	for tenant, b := range r.tenants {
		if now.Sub(b.at) >= time.Minute {
			delete(r.tenants, tenant)
		}
	}
}
