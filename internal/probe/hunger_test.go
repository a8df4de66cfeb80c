package probe

import (
	"testing"
	"time"
)

func TestHungerLastsAMinute(t *testing.T) {
	var h Hunger
	at := time.Unix(1000, 0)
	for _, s := range []struct {
		after   time.Duration
		starved uint64
		want    bool
	}{
		{0, 0, false}, {time.Second, 3, true}, {59 * time.Second, 3, true}, {time.Second, 3, false}, {time.Hour, 3, false},
		{time.Second, 4, true}, {30 * time.Second, 5, true}, {59 * time.Second, 5, true}, {time.Second, 5, false},
	} {
		at = at.Add(s.after)
		if got := h.Felt(s.starved, at); got != s.want {
			t.Errorf("%v later, with %d: %v", s.after, s.starved, got)
		}
	}
}
