package manager_test

import (
	"slices"
	"sync"
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// journal lists the actions of nodes, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) note(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) after(line string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Index(j.lines, line)
}

// announcer makes a mux announce the VIPs in its plan, and note when it gets and loses its VIP.
func announcer(name string, n *node, j *journal) {
	n.mu.Lock()
	defer n.mu.Unlock()
	has := false
	n.applied = func(p plan.Plan) {
		if now := len(p.Endpoints) > 0; now != has {
			has = now
			j.note(map[bool]string{true: name + " got it", false: name + " lost it"}[now])
		}
	}
	n.status = func() *apiv1.NodeStatus {
		n.mu.Lock()
		defer n.mu.Unlock()
		st := &apiv1.NodeStatus{}
		if has {
			j.note(name + " announced it")
			st.Routes = []*apiv1.RouteStatus{{Prefix: "203.0.113.10/32", Advertised: true}}
		}
		return st
	}
}

// TestDrainedMuxGivesUpAfterOthersHave drains one of two muxes of a VIP: a third one has and
// announces it before the first one loses it, and the one that stays never does.
func TestDrainedMuxGivesUpAfterOthersHave(t *testing.T) {
	r := newRig(t, nil)
	r.apply(network(), hostNode(1), muxNode(1), muxNode(2), muxNode(3))
	var j journal
	muxes := map[string]*node{}
	for _, name := range []string{"mux1", "mux2", "mux3"} {
		muxes[name] = r.join(name, "mux")
		announcer(name, muxes[name], &j)
		muxes[name].until("the first plan", func(p plan.Plan) bool { return p.Node.Name == name })
	}
	s := web(1)
	s.Placement = &lb.Placement{Replicas: 2, By: lb.PlaceByVIPs}
	r.apply(s)
	place := r.placed("web", 2, 0)
	gone, stays := place[0], place[1]
	for _, name := range place {
		muxes[name].until("the VIP", func(p plan.Plan) bool { return len(p.Endpoints) == 1 })
	}
	comes := "mux1"
	for name := range muxes {
		if !slices.Contains(place, name) {
			comes = name
		}
	}
	if j.after(comes+" got it") >= 0 {
		t.Fatalf("%s is not a mux of the VIP and got it", comes)
	}
	drained := muxNode(int(gone[3] - '0'))
	drained.Drain = true
	r.apply(drained)
	muxes[gone].until("the VIP is gone", func(p plan.Plan) bool { return len(p.Endpoints) == 0 })
	lost, announced := j.after(gone+" lost it"), j.after(comes+" announced it")
	if announced < 0 || lost < announced {
		t.Errorf("%s lost the VIP before %s announced it: %q", gone, comes, j.lines)
	}
	if j.after(stays+" lost it") >= 0 {
		t.Errorf("%s lost the VIP and is not drained", stays)
	}
	if now := r.placed("web", 2, 0); !slices.Contains(now, comes) || !slices.Contains(now, stays) {
		t.Errorf("the VIP is on %v, must be %s and %s", now, comes, stays)
	}
}
