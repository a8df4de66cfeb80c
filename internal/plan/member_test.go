package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// eightPerMember returns a size code that grows with the number of members.
func eightPerMember(w []uint16, _ uint8) uint8 { return uint8(3 + len(w)/4) }

func backendN(n int) lb.BackendKey {
	return lb.BackendKey{DIP: netip.AddrFrom4([4]byte{10, 20, byte(n >> 8), byte(n)}), Port: 8080}
}

func wantedOf(rt *rapid.T) []Wanted {
	ns := rapid.SliceOfNDistinct(rapid.IntRange(0, 12), 0, 8, rapid.ID).Draw(rt, "backends")
	var out []Wanted
	for _, n := range ns {
		out = append(out, Wanted{Backend: backendN(n), Weight: uint16(rapid.IntRange(0, 2).Draw(rt, "weight"))})
	}
	return out
}

// useLog is the naive oracle: the last backend of each id, and the end of its use.
type useLog map[uint16]struct {
	backend lb.BackendKey
	until   time.Time // the last moment of use
}

func TestAdvanceKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		st := EndpointState{Key: lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}}
		used, now := useLog{}, epoch
		window := time.Duration(rapid.IntRange(0, 60).Draw(rt, "window")) * time.Hour
		var memberships []Membership
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(rt, "hours")) * time.Hour)
			wanted, keyID := wantedOf(rt), uint32(rapid.IntRange(1, 2).Draw(rt, "key"))
			before := fmt.Sprintf("%+v", st)
			next, err := Advance(st, Input{Wanted: wanted, KeyID: keyID, Size: eightPerMember, Now: now, RepairWindow: window})
			if err != nil {
				rt.Fatal(err)
			}
			if fmt.Sprintf("%+v", st) != before {
				rt.Fatalf("the previous state was modified")
			}
			shuffled := rapid.Permutation(wanted).Draw(rt, "order")
			if other, _ := Advance(st, Input{Wanted: shuffled, KeyID: keyID, Size: eightPerMember, Now: now, RepairWindow: window}); !reflect.DeepEqual(other, next) {
				rt.Fatalf("order matters: %+v and %+v", next, other)
			}
			checkStep(rt, st, next, wanted, used, now)
			if next.Generation != st.Generation {
				if len(memberships) > 0 {
					memberships[len(memberships)-1].Until = now
				}
				memberships = append(memberships, next.past(time.Time{}))
			}
			st = next
		}
		past := memberships[:len(memberships)-1]
		past = past[max(0, len(past)-MaxHistory):]
		for len(past) > 0 && now.Sub(past[0].Until) >= window {
			past = past[1:]
		}
		if len(past) != len(st.History) || len(past) > 0 && !reflect.DeepEqual(st.History, past) {
			rt.Fatalf("history %+v, want %+v", st.History, past)
		}
	})
}

func checkStep(rt *rapid.T, prev, next EndpointState, wanted []Wanted, used useLog, now time.Time) {
	if len(next.Members) != len(wanted) || !slices.IsSortedFunc(next.Members, func(a, b MemberState) int { return int(a.ID) - int(b.ID) }) {
		rt.Fatalf("members %+v for %+v", next.Members, wanted)
	}
	same := prev.Generation > 0 && prev.RingCode == next.RingCode && prev.KeyID == next.KeyID && prev.Membership.same(next.Membership)
	if want := prev.Generation + 1; !same && next.Generation != want || same && next.Generation != prev.Generation {
		rt.Fatalf("generation %d after %d, same ring: %v", next.Generation, prev.Generation, same)
	}
	// A member of the previous step was in use until this moment.
	for _, m := range prev.Members {
		u := used[m.ID]
		u.backend, u.until = m.Backend, now
		used[m.ID] = u
	}
	seen := map[uint16]bool{}
	for _, m := range next.Members {
		if seen[m.ID] {
			rt.Fatalf("id %d twice", m.ID)
		}
		seen[m.ID] = true
		if !slices.Contains(wanted, Wanted{m.Backend, m.Weight, m.Backup}) {
			rt.Fatalf("member %+v was not wanted", m)
		}
		u, ever := used[m.ID]
		if ever && u.backend != m.Backend && now.Sub(u.until) < MemberQuarantine {
			rt.Fatalf("id %d of %v went to %v after %s", m.ID, u.backend, m.Backend, now.Sub(u.until))
		}
		for id, u := range used {
			if u.backend == m.Backend && id != m.ID && now.Sub(u.until) < MemberQuarantine {
				rt.Fatalf("backend %v changed its id from %d to %d", m.Backend, id, m.ID)
			}
		}
	}
	if next.Idle(now) != (len(next.Members) == 0 && !anyRecent(used, now)) {
		rt.Fatalf("idle %v with %+v", next.Idle(now), next)
	}
}

func anyRecent(used useLog, now time.Time) bool {
	for _, u := range used {
		if now.Sub(u.until) < MemberQuarantine {
			return true
		}
	}
	return false
}

// TestAdvanceWithFewIDs: an endpoint that carries the member in packets has few ids, and an
// endpoint that assigned larger ids cannot become one.
func TestAdvanceWithFewIDs(t *testing.T) {
	all := make([]Wanted, lb.MaxCookieMembers+1)
	for i := range all {
		all[i] = Wanted{Backend: backendN(i), Weight: 1}
	}
	in := Input{Wanted: all[:lb.MaxCookieMembers], MaxIDs: lb.MaxCookieMembers, KeyID: 1, Size: eightPerMember, Now: epoch}
	st, err := Advance(EndpointState{}, in)
	if err != nil || st.Members[lb.MaxCookieMembers-1].ID != lb.MaxCookieMembers-1 {
		t.Fatalf("every id: %v", err)
	}
	in.Wanted = all[1:]
	if _, err := Advance(st, in); !errors.Is(err, ErrMemberIDs) || !strings.Contains(err.Error(), "of 32748, 32748 in use, 0 in quarantine") {
		t.Fatalf("one more: %v", err)
	}
	in.Wanted, in.MaxIDs = all, 0
	many, err := Advance(st, in)
	if err != nil || many.Members[lb.MaxCookieMembers].ID != lb.MaxCookieMembers {
		t.Fatalf("without cookies: %v", err)
	}
	in.MaxIDs = lb.MaxCookieMembers
	for _, wanted := range [][]Wanted{all, all[lb.MaxCookieMembers:]} {
		in.Wanted = wanted
		if _, err := Advance(many, in); !errors.Is(err, ErrMemberIDs) || !strings.Contains(err.Error(), "has 32748, and with affinity cookie the largest is 32747") {
			t.Fatalf("with a larger id: %v", err)
		}
	}
	in.Wanted = all[:1]
	if st, err = Advance(many, in); err != nil || len(st.Members) != 1 {
		t.Fatalf("without the larger id: %v", err)
	}
}

func TestAdvanceRunsOutOfIDs(t *testing.T) {
	var st EndpointState
	all := make([]Wanted, MaxMemberID+1)
	for i := range all {
		all[i] = Wanted{Backend: backendN(i), Weight: 1}
	}
	st, err := Advance(st, Input{Wanted: all, KeyID: 1, Size: eightPerMember, Now: epoch})
	if err != nil || st.Members[MaxMemberID].ID != MaxMemberID {
		t.Fatalf("every id: %v", err)
	}
	stranger := []Wanted{{Backend: lb.BackendKey{DIP: netip.MustParseAddr("10.0.0.1"), Port: 1}}}
	if _, err := Advance(st, Input{Wanted: stranger, KeyID: 1, Size: eightPerMember, Now: epoch}); !errors.Is(err, ErrMemberIDs) {
		t.Fatalf("one more: %v, want ErrMemberIDs", err)
	}
	st, err = Advance(st, Input{Wanted: nil, KeyID: 1, Size: eightPerMember, Now: epoch})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Advance(st, Input{Wanted: stranger, KeyID: 1, Size: eightPerMember, Now: epoch.Add(MemberQuarantine - 1)}); !errors.Is(err, ErrMemberIDs) {
		t.Fatalf("within the quarantine: %v, want ErrMemberIDs", err)
	}
	if st, err = Advance(st, Input{Wanted: stranger, KeyID: 1, Size: eightPerMember, Now: epoch.Add(MemberQuarantine)}); err != nil || st.Members[0].ID != 0 {
		t.Fatalf("after the quarantine: %+v %v", st.Members, err)
	}
}
