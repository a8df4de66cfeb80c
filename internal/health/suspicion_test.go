package health

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// told is a result for a member at a time.
type told struct {
	at            time.Time
	silent, alive bool
}

// reachOf evaluates all results of a member.
func reachOf(heard []told, now time.Time) (reached, lost bool) {
	if len(heard) == 0 {
		return false, false
	}
	last := len(heard) - 1
	if !heard[last].silent {
		return true, false
	}
	if heard[last].alive {
		return false, true
	}
	first := last // the first of the latest silences in a row with a dead verdict
	for first > 0 && heard[first-1].silent && !heard[first-1].alive {
		first--
	}
	wasAlive := first > 0 && heard[first-1].alive
	return false, wasAlive && now.Sub(heard[first].at) < LostWindow
}

// TestSuspicionAgreesWithHistory: the counters detect isolation exactly when an evaluation of the
// whole history does.
func TestSuspicionAgreesWithHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const members = 3
		s := Suspicion{Grace: time.Duration(rapid.IntRange(0, 12).Draw(t, "grace")) * time.Second}
		services := rapid.IntRange(2, 7).Draw(t, "services")
		reach, contacts := make([]Reach, services), make([][members]Contact, services)
		heard := make([][members][]told, services)
		now, since := time.Unix(1000, 0), time.Time{}
		// The world is mostly healthy, or mostly not.
		broken := false
		for range rapid.IntRange(1, 80).Draw(t, "events") {
			switch rapid.IntRange(0, 12).Draw(t, "event") {
			case 0:
				broken = !broken
			case 1:
				now = now.Add(time.Duration(rapid.IntRange(1, 7).Draw(t, "seconds")) * time.Second)
			case 2:
				i, j := rapid.IntRange(0, services-1).Draw(t, "service"), rapid.IntRange(0, members-1).Draw(t, "member")
				s.Forget(&contacts[i][j])
				heard[i][j] = nil
			default:
				i := rapid.IntRange(0, services-1).Draw(t, "service")
				for j := range members {
					e := told{now, broken != (rapid.IntRange(0, 9).Draw(t, "other") == 0), rapid.Bool().Draw(t, "alive")}
					s.Heard(&contacts[i][j], &reach[i], e.silent, e.alive, now)
					heard[i][j] = append(heard[i][j], e)
				}
			}
			news, down := 0, 0
			for i := range services {
				all, lost := 0, 0
				for j := range members {
					r, l := reachOf(heard[i][j], now)
					if r || l {
						all++
					}
					if l {
						lost++
					}
				}
				if all > 0 {
					news++
				}
				if lost > 0 && float64(lost) >= 0.95*float64(all) {
					down++
				}
			}
			want := Trusting
			if down >= 3 && 2*down >= news {
				if since.IsZero() {
					since = now
				}
				if want = Holding; now.Sub(since) >= s.Grace {
					want = Conceding
				}
			} else {
				since = time.Time{}
			}
			if got := s.Decide(now); got != want || s.Phase() != want || !s.Since().Equal(since) {
				t.Fatalf("%v since %v, expected %v since %v: %d of %d services are lost", got, s.Since(), want, since, down, news)
			}
			due := s.Due()
			if (want == Trusting) != due.IsZero() && want != Conceding || want == Holding && due.After(since.Add(s.Grace)) || !due.IsZero() && !due.After(now) {
				t.Fatalf("due at %v, suspects itself since %v: %v", due, since, want)
			}
		}
	})
}

// network is a machine with services of a number of members each, all of which just replied.
type network struct {
	Suspicion
	reach    []Reach
	contacts [][]Contact
	now      time.Time
}

func newNetwork(services, members int) *network {
	n := &network{Suspicion: Suspicion{Grace: DefaultGrace}, reach: make([]Reach, services), now: time.Unix(1000, 0)}
	for range services {
		n.contacts = append(n.contacts, make([]Contact, members))
	}
	for i := range services {
		n.hear(i, members, false, true)
	}
	return n
}

// hear records one result for the first members of a service.
func (n *network) hear(service, members int, silent, alive bool) Phase {
	for j := range members {
		n.Heard(&n.contacts[service][j], &n.reach[service], silent, alive, n.now)
	}
	return n.Decide(n.now)
}

func TestSuspectsWhenHalfOfAllIsLost(t *testing.T) {
	n := newNetwork(6, 20)
	for i := range 3 {
		if got := n.hear(i, 18, true, true); got != Trusting {
			t.Fatalf("%d services have lost 18 of 20 members: %v", i+1, got)
		}
	}
	for i, want := range []Phase{Trusting, Trusting, Holding} {
		if got := n.hear(i, 19, true, true); got != want {
			t.Fatalf("%d services have lost 19 of 20 members: %v", i+1, got)
		}
	}
	if due := n.Due(); !due.Equal(n.now.Add(DefaultGrace)) {
		t.Fatalf("due %v", due)
	}
	n.now = n.now.Add(DefaultGrace)
	if got := n.Decide(n.now); got != Conceding {
		t.Fatalf("after the grace: %v", got)
	}
	if got := n.hear(0, 20, true, false); got != Conceding || !n.contacts[0][0].Fell() {
		t.Fatalf("one of them fell: %v", got)
	}
	n.now = n.now.Add(LostWindow)
	if got := n.Decide(n.now); got != Trusting {
		t.Fatalf("long after: %v", got)
	}
}

func TestRefusalIsASignOfLife(t *testing.T) {
	n := newNetwork(4, 10)
	for i := range 4 {
		if got := n.hear(i, 10, false, false); got != Trusting {
			t.Fatalf("%d services refuse: %v", i+1, got)
		}
	}
	n = newNetwork(4, 10)
	for i := range 4 {
		n.hear(i, 10, true, true)
	}
	if n.Phase() != Holding {
		t.Fatal("does not suspect itself")
	}
	for i := range 2 {
		n.hear(i, 1, false, false)
	}
	if got := n.Phase(); got != Trusting {
		t.Fatalf("a member each of two services of four refuses: %v", got)
	}
}

// TestServicesThatDieInTurn: services that die one after the other do not add up to isolation.
func TestServicesThatDieInTurn(t *testing.T) {
	n := newNetwork(6, 10)
	for i := range 6 {
		if n.hear(i, 10, true, true) != Trusting || n.hear(i, 10, true, false) != Trusting {
			t.Fatalf("suspects itself with the %dth service", i+1)
		}
		n.now = n.now.Add(LostWindow)
		for j := i + 1; j < 6; j++ {
			n.hear(j, 10, false, true)
		}
		n.Decide(n.now)
	}
}

func TestWhatIsHeld(t *testing.T) {
	for p, want := range map[Phase][3]bool{Trusting: {false, false, false}, Holding: {true, true, false}, Conceding: {false, true, false}} {
		if got := [3]bool{p.Held(false, false), p.Held(true, false), p.Held(false, true)}; got != want {
			t.Errorf("phase %d holds %v, expected %v", p, got, want)
		}
	}
}
