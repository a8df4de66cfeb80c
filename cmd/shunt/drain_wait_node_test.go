package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// TestNodeDrainWait plays a mux's reports second by second.
func TestNodeDrainWait(t *testing.T) {
	type second struct {
		connected bool
		synced    int64
		routes    int // -1: it has just connected, and reported none yet
	}
	for _, c := range []struct {
		seconds []second
		want    string
	}{
		{[]second{{true, 6, 2}, {true, 7, 2}, {true, 7, 1}, {true, 7, 1}, {true, 7, 0}}, "it does not obey yet\n2 VIPs left\n1 VIPs left\ndrained\n"},
		{[]second{{true, 8, 0}}, "drained\n"},
		{[]second{{true, 6, 0}}, "it does not obey yet\nout of seconds"},
		{[]second{{true, 7, 2}, {false, 7, 0}, {false, 7, 0}, {true, 7, 0}}, "2 VIPs left\nit is away\ndrained\n"},
		{[]second{{true, 7, 2}, {true, 7, -1}, {true, 7, 1}, {true, 7, 0}}, "2 VIPs left\nit has not said yet what it announces\n1 VIPs left\ndrained\n"},
	} {
		var said strings.Builder
		seconds := c.seconds
		w := nodeWatch{node: "mux1", revision: 7}
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
			n := &apiv1.NodeStatus{Name: "mux1", Connected: seconds[0].connected, SyncedRevision: seconds[0].synced}
			if seconds[0].routes >= 0 {
				n.Tables = []*apiv1.TableStatus{{Name: "flows"}}
			}
			for i := range 2 {
				n.Routes = append(n.Routes, &apiv1.RouteStatus{Prefix: fmt.Sprint(i), Advertised: i < seconds[0].routes})
			}
			return &apiv1.StatusResponse{Nodes: []*apiv1.NodeStatus{{Name: "mux0"}, n}}, nil
		}
		if err := w.wait(); err != nil {
			said.WriteString(err.Error())
		}
		if said.String() != c.want {
			t.Errorf("%v: said %q, want %q", c.seconds, said.String(), c.want)
		}
	}
}
