package manager

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
)

func loadMember(id uint16, connections uint32) load.Member {
	key := lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}
	return load.Member{Key: load.Key{Endpoint: key, Member: id}, Load: load.Load{Connections: connections, Has: load.HasConnections}}
}

// TestLoadsArePaced: a listener receives all loads first, then newer ones, in one message per pace,
// and never its own. One that is fresh receives no earlier loads.
func TestLoadsArePaced(t *testing.T) {
	fake := clock.NewFake(time.Unix(1000, 0))
	l := newHostLoads()
	put := func(origin string, members ...load.Member) { l.put(members, origin, fake.Now()) }
	put(loadsOwn, loadMember(1, 10))
	put("m2", loadMember(2, 20))
	all := l.teller(fake, nil)
	m2 := l.teller(fake, func(origin string) bool { return origin == "m2" })
	late := l.teller(fake, nil).fresh()
	// told returns the ids and connections that a teller sends now.
	told := func(r *loadTeller) string {
		t.Helper()
		members, err := convert.FromLoadReport(r.take())
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, m := range members {
			out = append(out, fmt.Sprintf("%d:%d", m.Key.Member, m.Connections))
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	expect := func(when string, r *loadTeller, want string) {
		t.Helper()
		if got := told(r); got != want {
			t.Errorf("%s: told %q, want %q", when, got, want)
		}
	}
	expect("at first", all, "1:10 2:20")
	expect("at first, to another member", m2, "1:10")
	expect("at first, to one that is fresh", late, "")
	expect("again", all, "")
	select {
	case <-all.stirs():
		t.Fatal("stirred by nothing")
	default:
	}
	put(loadsOwn, loadMember(1, 11))
	put(loadsOwn, loadMember(1, 12), loadMember(3, 30))
	put("m2", loadMember(2, 21))
	for _, r := range []*loadTeller{all, m2, late} {
		<-r.stirs()
		r.come()
		if r.stirs() != nil {
			t.Error("it waits for news while some wait")
		}
	}
	expect("before its time", all, "")
	select {
	case <-all.dues():
		t.Fatal("due before its time")
	default:
	}
	fake.Advance(load.SampleEvery / loadPace)
	for _, r := range []*loadTeller{all, m2, late} {
		<-r.dues()
		r.rise()
	}
	expect("after a pace", all, "1:12 2:21 3:30")
	expect("after a pace, to another member", m2, "1:12 3:30")
	expect("after a pace, to one that was fresh", late, "1:12 2:21 3:30")
	fake.Advance(time.Minute)
	if got := l.told(loadMember(1, 0).Key, fake.Now()); got != nil {
		t.Errorf("known though nobody repeats it: %v", got)
	}
	put("m2", loadMember(2, 22))
	<-all.stirs()
	all.come()
	<-all.dues() // more than a pace has passed
	all.rise()
	expect("after a pause", all, "2:22")
	// A host that reports more often than others shortens the pace for all.
	fast := loadMember(3, 31)
	fast.Every = load.MinSample
	put(loadsOwn, fast)
	<-all.stirs()
	all.come()
	if fake.Advance(load.MinSample / loadPace); len(all.due) == 0 {
		t.Error("not due after half of what is between two looks of the fastest host")
	}
	<-all.dues()
	all.rise()
	expect("of a fast host", all, "3:31")
	var nobody *loadTeller
	if nobody.stirs() != nil || nobody.dues() != nil || nobody.take() != nil {
		t.Error("who has nothing to tell tells something")
	}
}
