package manager

import (
	"fmt"
	"maps"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// TestOutboxTellsTheNewest: after any reports of nodes and changes of leader, a leader that has
// received every message has the newest report and all verdicts of each connected node, after a
// hello, and nothing of ended streams. More important messages are never behind less important
// ones.
func TestOutboxTellsTheNewest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o, v := newOutbox(), newVerdicts()
		sessions := map[string]*session{}
		truth := map[string]*heardOf{}
		leader := map[string]*heardOf{}
		var number uint64
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			name := fmt.Sprintf("n%d", rapid.IntRange(1, 3).Draw(rt, "node"))
			switch rapid.IntRange(0, 9).Draw(rt, "what") {
			case 0:
				number++
				s := &session{name: name, role: "host", number: number}
				sessions[name], truth[name] = s, &heardOf{stream: number, verdicts: map[uint32]bool{}}
				o.hello(s, &apiv1.Hello{Name: name})
			case 1:
				if s := sessions[name]; s != nil {
					o.left(s)
					delete(sessions, name)
					delete(truth, name)
				}
			case 2:
				o.link()
				leader = map[string]*heardOf{}
			case 3:
				o.unlink()
				leader = map[string]*heardOf{}
				o.link()
			case 4, 5, 6:
				s := sessions[name]
				if s == nil {
					continue
				}
				r := randomReport(rt, truth[name])
				o.ack(s, r.SyncedRevision)
				if r.Health != nil {
					heard := v.report(s, r.Health)
					if heard == nil {
						rt.Fatal("a host's verdicts did not count")
					}
					o.health(s, heard.news, heard.all)
				}
				if r.Status != nil {
					o.report(s, r.Status)
				}
			default:
				hear(rt, o.next(weightStatus), leader)
			}
		}
		o.link()
		leader = map[string]*heardOf{}
		last := weightObeyed
		for up := o.next(weightStatus); up != nil; up = o.next(weightStatus) {
			if w := weightOf(up); w < last {
				rt.Fatalf("%v came after what matters less", up)
			} else {
				last = w
			}
			hear(rt, up, leader)
		}
		if len(leader) != len(truth) {
			rt.Fatalf("the leader knows %v, there are %v", leader, truth)
		}
		for name, want := range truth {
			got := leader[name]
			if got == nil || got.stream != want.stream || got.synced != want.synced || got.status != want.status || !maps.Equal(got.verdicts, want.verdicts) {
				rt.Fatalf("%s: the leader knows %+v, want %+v", name, got, want)
			}
		}
	})
}

// heardOf is the known state of a node.
type heardOf struct {
	stream   uint64
	synced   int64
	status   string
	verdicts map[uint32]bool
	told     bool
}

func randomReport(rt *rapid.T, knows *heardOf) *apiv1.NodeReport {
	r := &apiv1.NodeReport{SyncedRevision: knows.synced + int64(rapid.IntRange(0, 2).Draw(rt, "ahead"))}
	knows.synced = r.SyncedRevision
	if rapid.Bool().Draw(rt, "status") {
		knows.status = fmt.Sprint(rapid.IntRange(0, 1000).Draw(rt, "text"))
		r.Status = &apiv1.NodeStatus{Version: knows.status}
	}
	if rapid.Bool().Draw(rt, "verdicts") {
		// The first verdicts of a stream are all of them.
		r.Health = &apiv1.HealthReport{Full: !knows.told || rapid.Bool().Draw(rt, "full")}
		knows.told = true
		if r.Health.Full {
			knows.verdicts = map[uint32]bool{}
		}
		e := &apiv1.EndpointHealth{Vip: "203.0.113.10"}
		for id := range uint32(4) {
			switch rapid.IntRange(0, 2).Draw(rt, "verdict") {
			case 0:
				e.Alive = append(e.Alive, id)
				knows.verdicts[id] = true
			case 1:
				e.Dead = append(e.Dead, id)
				knows.verdicts[id] = false
			}
		}
		r.Health.Endpoints = append(r.Health.Endpoints, e)
	}
	return r
}

func weightOf(up *apiv1.RelayUp) weight {
	switch r := up.GetSaid().GetReport(); {
	case r.GetStatus() != nil:
		return weightStatus
	case r.GetHealth() != nil:
		return weightHealth
	}
	return weightObeyed
}

// hear folds a message into a leader's state.
func hear(rt *rapid.T, up *apiv1.RelayUp, knows map[string]*heardOf) {
	if left := up.GetLeft(); left != nil && knows[left.GetNode()] != nil && knows[left.GetNode()].stream == left.GetStream() {
		delete(knows, left.GetNode())
	}
	said := proto.CloneOf(up.GetSaid())
	if said == nil {
		return
	}
	n := knows[said.GetNode()]
	if said.GetReport().GetHello() != nil {
		n = &heardOf{stream: said.GetStream(), verdicts: map[uint32]bool{}}
		knows[said.GetNode()] = n
	}
	if n == nil || n.stream != said.GetStream() {
		rt.Fatalf("%v: of a stream that was not introduced, or is over", said)
	}
	n.synced = said.GetReport().GetSyncedRevision()
	if st := said.GetReport().GetStatus(); st != nil {
		n.status = st.GetVersion()
	}
	if h := said.GetReport().GetHealth(); h != nil {
		if h.GetFull() {
			n.verdicts = map[uint32]bool{}
		}
		for _, e := range h.GetEndpoints() {
			for _, id := range e.GetAlive() {
				n.verdicts[id] = true
			}
			for _, id := range e.GetDead() {
				n.verdicts[id] = false
			}
		}
	}
}
