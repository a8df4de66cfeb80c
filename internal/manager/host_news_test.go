package manager

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
)

// blocked reports whether a member that has this account holds a mux's change back.
func blocked(p *apiv1.HostProgress, revision int64, endpoint string) bool {
	o := otherProgress{revision: p.GetRevision(), owed: map[string]bool{}}
	for _, e := range p.GetOwed() {
		o.owed[e] = true
	}
	return o.blocks(&fold{hosts: revision, keys: []string{endpoint}})
}

// TestHostNewsReleaseMuxes compares a receiver of the sent accounts with a receiver of all
// accounts. The first one never releases a change that a host has yet to apply, and holds no change
// that the second one releases back for longer than progressHold.
func TestHostNewsReleaseMuxes(t *testing.T) {
	saved := 0
	rapid.Check(t, func(rt *rapid.T) {
		var n hostNews
		revision, bindings := int64(1), int64(1)
		pending := map[string]int64{} // endpoint → the newest revision that a host has yet to apply
		type change struct {
			revision int64
			endpoint string
		}
		var changes []change
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			switch rapid.IntRange(0, 3).Draw(rt, "step") {
			case 0, 1: // a change that concerns a host here
				revision++
				if rapid.Bool().Draw(rt, "bindings") {
					bindings = revision
				}
				e := rapid.SampledFrom([]string{"endpoint/a", "endpoint/b", "endpoint/c"}).Draw(rt, "endpoint")
				pending[e] = revision
				changes = append(changes, change{revision, e})
			case 2: // one that concerns only hosts of other members
				revision++
				if rapid.Bool().Draw(rt, "bindings") {
					bindings = revision
				}
				changes = append(changes, change{revision, "endpoint/d"})
			case 3:
				if len(pending) > 0 {
					delete(pending, rapid.SampledFrom(slices.Sorted(maps.Keys(pending))).Draw(rt, "applied"))
				}
			}
			all := &apiv1.HostProgress{Revision: revision, Owed: slices.Sorted(maps.Keys(pending))}
			account := hostAccount{progress: all, bindings: bindings}
			for _, r := range pending {
				account.newest = max(account.newest, r)
			}
			if n.due != nil && rapid.Bool().Draw(rt, "due fires") {
				n.ripen()
			}
			if !n.worth(account, clock.System{}) && !sameHosts(all, n.sent) {
				saved++
			}
			for _, c := range changes {
				ours := blocked(n.sent, c.revision, c.endpoint)
				if last, owed := pending[c.endpoint]; owed && last == c.revision && !ours {
					rt.Fatalf("change %v is released before the hosts have applied it: %v was sent, %v is true", c, n.sent, all)
				}
				if ours && !blocked(all, c.revision, c.endpoint) && n.due == nil {
					rt.Fatalf("change %v is held back and nothing ends it: %v was sent, %v is true", c, n.sent, all)
				}
			}
		}
	})
	if saved == 0 {
		t.Error("every account was sent")
	}
}

// TestHostNewsHoldBack checks that additions are held back for progressHold, and those of only
// repair items until repairPace after the last account.
func TestHostNewsHoldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n hostNews
		bindings := int64(0) // 0: of the account's own revision
		expect := func(want bool, revision, newest int64, owed ...string) {
			t.Helper()
			a := hostAccount{progress: &apiv1.HostProgress{Revision: revision, Owed: owed}, newest: newest, bindings: bindings}
			if bindings == 0 {
				a.bindings = revision
			}
			if got := n.worth(a, clock.System{}); got != want {
				t.Errorf("revision %d, owed %v: worth %v, want %v", revision, owed, got, want)
			}
		}
		held := func(want time.Duration) {
			t.Helper()
			began := time.Now()
			<-n.due
			if got := time.Since(began); got != want {
				t.Errorf("held back for %v, want %v", got, want)
			}
			n.ripen()
		}
		expect(true, 5, 0)
		expect(false, 5, 0)
		expect(false, 6, 6, "a")
		expect(false, 7, 7, "a", "b")
		expect(true, 7, 7, "b") // a is applied
		expect(true, 8, 7, "b") // nothing of revision 8 concerns a host here
		expect(false, 9, 9, "b", "c")
		held(progressHold)
		expect(true, 9, 9, "b", "c")
		expect(true, 9, 9, "b", "c", "d") // a host reopened its stream

		bindings = 9
		time.Sleep(5 * time.Millisecond)
		expect(false, 10, 10, "b", "c", "d", "e")
		expect(false, 11, 10, "b", "c", "d", "e")
		held(repairPace - 5*time.Millisecond)
		expect(true, 11, 10, "b", "c", "d", "e")
		time.Sleep(repairPace)
		// no account was sent for long, and no host here has the endpoint
		expect(true, 12, 11, "b", "c", "d", "e")
		expect(false, 13, 13, "b", "c", "d", "e", "f")
		bindings = 14
		expect(false, 14, 14, "b", "c", "d", "e", "f", "g")
		held(progressHold) // not longer, because there are bindings now
		expect(true, 14, 14, "b", "c", "d", "e", "f", "g")
		bindings = 15
		expect(true, 15, 14, "b", "c", "d", "e", "f", "g")
	})
}
