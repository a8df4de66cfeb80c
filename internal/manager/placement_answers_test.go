package manager

import (
	"maps"
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// TestLoadsCountAnswers: placement by load counts replies to servers' own connections, of VIPs with
// endpoints and without.
func TestLoadsCountAnswers(t *testing.T) {
	got := packetsOf(&apiv1.NodeStatus{
		Members: []*apiv1.MemberStatus{{Vip: "203.0.113.1", Packets: 5}, {Vip: "203.0.113.1", Packets: 6}, {Vip: "203.0.113.2", Packets: 7}},
		Answers: []*apiv1.AnswerStatus{{Vip: "203.0.113.1", Packets: 100}, {Vip: "203.0.113.3", Packets: 9}},
	})
	want := map[string]uint64{"203.0.113.1": 111, "203.0.113.2": 7, "203.0.113.3": 9}
	if !maps.Equal(got, want) {
		t.Errorf("packets by VIP %v, expected %v", got, want)
	}
}
