package host

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
)

// TestTenderFollowsTheUplink checks that a fault is in the status while it lasts, and that a
// replaced uplink is reported once.
func TestTenderFollowsTheUplink(t *testing.T) {
	index, lost := 7, error(nil)
	var moved, tended []int
	var fault string
	d := &tender{
		uplink: func() (int, error) { return index, lost },
		tend:   func(i int) ([]string, error) { tended = append(tended, i); return nil, nil },
		moved:  func(i int) { moved = append(moved, i) },
		report: func(f string) { fault = f },
		log:    slog.New(slog.DiscardHandler), ifindex: 7,
	}
	d.once()
	lost = errors.New("interface up0: not found")
	d.once()
	if fault != "restore programs and pins: interface up0: not found" {
		t.Errorf("fault %q", fault)
	}
	index, lost = 9, nil
	d.once()
	d.once()
	if fault != "" || !slices.Equal(moved, []int{9}) || !slices.Equal(tended, []int{7, 9, 9}) {
		t.Errorf("fault %q, moved to %v, tended %v", fault, moved, tended)
	}
}
