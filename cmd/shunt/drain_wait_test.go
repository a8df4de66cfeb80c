package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// TestDrainWait plays the muxes' flow counts second by second. -1 is a second in which the backend
// is no member.
func TestDrainWait(t *testing.T) {
	for _, c := range []struct {
		counts []int
		synced int64
		want   string
	}{
		{[]int{5, 5, 2, 0, 0, 0}, 7, "5 flows left\n2 flows left\n0 flows left\ndrained\n"},
		{[]int{0, 0, 1, 0, 0, 0}, 7, "1 flows left\n0 flows left\ndrained\n"},
		{[]int{-1, -1, -1}, 7, "drained\n"},
		{[]int{4, -1}, 7, "4 flows left\nthe limit has passed, 4 flows were given up\n"},
		{[]int{0, 0, 0, 0, 0}, 6, "out of seconds"},
	} {
		var said strings.Builder
		seconds := c.counts
		w := drainWatch{service: "web", backends: []lb.BackendKey{{DIP: netip.MustParseAddr("10.20.1.11"), Port: 8080}}, revision: 7}
		w.tell = func(format string, args ...any) error {
			_, err := fmt.Fprintf(&said, format, args...)
			return err
		}
		w.pause = func() error {
			if seconds = seconds[1:]; len(seconds) == 0 {
				return errors.New("out of seconds")
			}
			return nil
		}
		w.status = func() (*apiv1.StatusResponse, error) {
			mux := func(name string, connected bool, flows int) *apiv1.NodeStatus {
				n := &apiv1.NodeStatus{Name: name, Role: "mux", Connected: connected, SyncedRevision: c.synced}
				if flows >= 0 {
					n.Members = []*apiv1.MemberStatus{
						{Service: "web", Dip: "10.20.1.11", DipPort: 8080, Flows: uint64(flows)},
						{Service: "web", Dip: "10.20.2.11", DipPort: 8080, Flows: 99},
					}
				}
				return n
			}
			return &apiv1.StatusResponse{Nodes: []*apiv1.NodeStatus{
				mux("mux1", true, min(seconds[0], 1)), mux("mux2", true, max(seconds[0]-1, min(seconds[0], 0))), mux("mux3", false, 50),
			}}, nil
		}
		if err := w.wait(); err != nil {
			said.WriteString(err.Error())
		}
		if said.String() != c.want {
			t.Errorf("%v: said %q, want %q", c.counts, said.String(), c.want)
		}
	}
}
