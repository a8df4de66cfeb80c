package plan

import (
	"net/netip"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// TestDeathsAreNoted: if muxes do not track flows, the state records which members are dead and
// which were within the window, without a new generation, and hosts get the possible owners
// meanwhile.
func TestDeathsAreNoted(t *testing.T) {
	said := map[uint16]Hearsay{0: HeardAlive, 1: HeardAlive, 2: HeardAlive}
	in := Input{
		KeyID: 1, Size: ring.SizeCode, Now: epoch, RepairWindow: time.Hour, Revives: true,
		Heard: func(id uint16) Heard { return Heard{Health: said[id]} },
	}
	window := time.Hour
	ep := &lb.Endpoint{RepairWindow: &window}
	for n := range 3 {
		in.Wanted = append(in.Wanted, Wanted{Backend: backendN(n), Weight: 1})
		ep.Backends = append(ep.Backends, lb.Backend{DIPs: []netip.Addr{backendN(n).DIP}, Port: backendN(n).Port, Host: netip.MustParseAddr("10.20.1.1")})
	}
	st := EndpointState{Key: lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}}
	// step advances once and compares the record of member 1 and the hosts' repair data: the number
	// of memberships, and whether it is a target.
	step := func(what string, fallen bool, revived time.Time, memberships int) {
		t.Helper()
		next, err := Advance(st, in)
		if err != nil {
			t.Fatal(err)
		}
		if m := next.Members[1]; m.Fallen != fallen || !m.Revived.Equal(revived) {
			t.Errorf("%s: fallen %v, revived %s, want %v and %s", what, m.Fallen, m.Revived, fallen, revived)
		}
		if next.Generation != 1 {
			t.Errorf("%s: generation %d", what, next.Generation)
		}
		if st.Generation > 0 && next.Equal(&st) && (fallen != st.Members[1].Fallen || !revived.Equal(st.Members[1].Revived)) {
			t.Errorf("%s: counts as no change", what)
		}
		st = next
		r, ok := MakeRepair(ep, &st, []Key{{ID: 1}}, lb.EncapIPIP)
		if ok != (memberships > 0) {
			t.Fatalf("%s: hosts hear something: %v", what, ok)
		}
		if !ok {
			return
		}
		if len(r.Memberships) != memberships || r.Targets[1].Fallen != fallen || r.Targets[0].Fallen {
			t.Errorf("%s: hosts hear of %d memberships, and %+v", what, len(r.Memberships), r.Targets)
		}
		if before, now := r.Memberships[0].Seats, r.Memberships[1].Seats; !before[1].Down || before[0].Down || now[1].Down {
			t.Errorf("%s: down are %+v, now %+v", what, before, now)
		}
	}
	never := time.Time{}
	step("in the beginning", false, never, 0)
	said[1] = HeardDead
	step("dead", true, never, 2)
	said[1] = HeardNothing
	step("nobody speaks of it", true, never, 2)
	said[1] = HeardAlive
	in.Now = in.Now.Add(time.Minute)
	back := in.Now
	step("back", false, back, 2)
	in.Now = in.Now.Add(time.Minute)
	step("a minute later", false, back, 2)
	if due := Due(&st, in); !due.Equal(back.Add(time.Hour)) {
		t.Errorf("due at %s, want an hour after it came back", due)
	}
	said[1] = HeardDead
	step("dead again", true, back, 2)
	said[1] = HeardAlive
	step("back again", false, in.Now, 2)
	in.Now = in.Now.Add(time.Hour)
	step("when the window is over", false, never, 0)
	said[1], in.Revives = HeardDead, false
	step("where muxes remember", false, never, 0)
}
