package agent

import (
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// TestQuietNodesRepeatThemselvesSeldom: changes are reported at the next tick, unchanged reports
// after QuietFor.
func TestQuietNodesRepeatThemselvesSeldom(t *testing.T) {
	report := func(revision int64, packets uint64) *apiv1.NodeReport {
		return &apiv1.NodeReport{SyncedRevision: revision, Epoch: 1, Status: &apiv1.NodeStatus{
			SyncedRevision: revision, Members: []*apiv1.MemberStatus{{Member: 1, Packets: packets}},
		}}
	}
	now := time.Unix(1000, 0)
	last := said{report(5, 10), now}
	for name, c := range map[string]struct {
		last  said
		next  *apiv1.NodeReport
		after time.Duration
		want  bool
	}{
		"the same":             {last, report(5, 10), time.Second, true},
		"the same, later":      {last, report(5, 10), QuietFor, false},
		"a counter moved":      {last, report(5, 11), time.Second, false},
		"another revision":     {last, report(6, 10), time.Second, false},
		"nothing was said yet": {said{}, report(5, 10), time.Second, false},
	} {
		if got := c.last.covers(c.next, now.Add(c.after)); got != c.want {
			t.Errorf("%s: covered is %v", name, got)
		}
	}
}
