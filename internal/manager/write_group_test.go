package manager

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// allAtOnce sends writes while another one is in progress, so that all of them wait, and returns
// their answers in order.
func allAtOnce(t *testing.T, k *kept, reqs []*apiv1.ApplyRequest) (revisions []int64, changes [][]*apiv1.Change, errs []error) {
	t.Helper()
	term, err := k.m.lead(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	revisions, changes, errs = make([]int64, len(reqs)), make([][]*apiv1.Change, len(reqs)), make([]error, len(reqs))
	var calls sync.WaitGroup
	term.writing.Lock()
	for i, req := range reqs {
		calls.Go(func() { revisions[i], changes[i], errs[i] = k.m.apply(t.Context(), req) })
		for waiting := 0; waiting <= i; {
			term.requests.mu.Lock()
			waiting = len(term.requests.waiting)
			term.requests.mu.Unlock()
			runtime.Gosched()
		}
	}
	term.writing.Unlock()
	calls.Wait()
	return revisions, changes, errs
}

func applying(objects ...lb.Object) *apiv1.ApplyRequest {
	req := &apiv1.ApplyRequest{}
	for _, o := range objects {
		req.Objects = append(req.Objects, convert.ToObject(o))
	}
	return req
}

// TestWritesThatWaitAreStoredTogether: writes that touch different objects have one revision and
// separate answers. Writes that touch the same object are stored one after the other. A fault is
// returned only to the caller that made it.
func TestWritesThatWaitAreStoredTogether(t *testing.T) {
	k := newKept(t)
	k.apply(crowd(8, 1, 1)...)
	weighted := func(i int, weight uint16) *lb.Service {
		svc := crowd(i+1, 1, 1)[i+1].(*lb.Service)
		svc.Endpoints[0].Backends[0].Weight = weight
		lb.SetDefaults(svc)
		return svc
	}
	expect := func(i int, ch []*apiv1.Change, err error, revision int64, action apiv1.Change_Action) {
		t.Helper()
		name := fmt.Sprintf("s%d", i)
		if err != nil || len(ch) != 1 || ch[0].GetName() != name || ch[0].GetAction() != action || ch[0].GetAfter().GetRevision() != revision {
			t.Fatalf("%s: %v at revision %d, %v", name, ch, revision, err)
		}
	}

	var reqs []*apiv1.ApplyRequest
	for i := range 8 {
		reqs = append(reqs, applying(weighted(i, 2)))
	}
	revisions, changes, errs := allAtOnce(t, k, append(reqs, applying(weighted(0, 3))))
	for i := range 8 {
		expect(i, changes[i], errs[i], revisions[0], apiv1.Change_ACTION_UPDATED)
	}
	if revisions[8] <= revisions[0] {
		t.Errorf("the second write of a service has revision %d, the first one %d", revisions[8], revisions[0])
	}
	expect(0, changes[8], errs[8], revisions[8], apiv1.Change_ACTION_UPDATED)

	// A write that changes nothing is not part of the group.
	revisions, changes, errs = allAtOnce(t, k, []*apiv1.ApplyRequest{reqs[1], applying(weighted(2, 3))})
	if errs[0] != nil || changes[0][0].GetAction() != apiv1.Change_ACTION_UNCHANGED || revisions[0] >= revisions[1] {
		t.Errorf("the same again: %v at revision %d, %v", changes[0], revisions[0], errs[0])
	}
	expect(2, changes[1], errs[1], revisions[1], apiv1.Change_ACTION_UPDATED)

	// Two writes that claim the same VIP are not valid together. The later one gets the error, and
	// the others are stored.
	one, two := weighted(3, 4), weighted(4, 4)
	one.VIPs, two.VIPs = []netip.Addr{netip.MustParseAddr("203.0.200.1")}, []netip.Addr{netip.MustParseAddr("203.0.200.1")}
	revisions, changes, errs = allAtOnce(t, k, []*apiv1.ApplyRequest{applying(weighted(5, 4)), applying(one), applying(two), applying(weighted(6, 4))})
	for at, i := range map[int]int{0: 5, 1: 3, 3: 6} {
		expect(i, changes[at], errs[at], revisions[at], apiv1.Change_ACTION_UPDATED)
	}
	if inv := (invalid{}); !errors.As(errs[2], &inv) {
		t.Errorf("a VIP of another service: %v at revision %d, %v", changes[2], revisions[2], errs[2])
	}
}

// TestDryRunsHoldNothingUp: a dry run is answered while writes are locked, and ends with its
// caller. So is a large write that stores nothing.
func TestDryRunsHoldNothingUp(t *testing.T) {
	k := newKept(t)
	k.apply(crowd(2, 1, 1)...)
	term, err := k.m.lead(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	term.writing.Lock()
	defer term.writing.Unlock()
	req := applying(crowd(3, 1, 1)...)
	req.DryRun, req.Prune = true, true
	if _, changes, err := k.m.apply(t.Context(), req); err != nil || len(changes) == 0 {
		t.Errorf("a dry run while a write is computed: %v (%v)", changes, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := k.m.apply(gone, req); err == nil {
		t.Error("a dry run of a caller that has gone is answered")
	}
	// Large writes that are refused, or change nothing, are answered, too.
	same := crowd(largeWrite, 1, 1)
	for _, o := range same {
		lb.SetDefaults(o)
	}
	refused := slices.Clone(same)
	twin := *same[1].(*lb.Service)
	twin.Name = "twin"
	refused = append(refused, &twin)
	term.writing.Unlock()
	k.apply(same...)
	term.writing.Lock()
	if _, changes, err := k.m.apply(t.Context(), applying(same...)); err != nil || len(changes) != len(same) {
		t.Errorf("a large write that changes nothing: %v (%v)", changes, err)
	}
	if _, _, err := k.m.apply(t.Context(), applying(refused...)); !errors.As(err, &invalid{}) {
		t.Errorf("a large write that is refused: %v", err)
	}
}
