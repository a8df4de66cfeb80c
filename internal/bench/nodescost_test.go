package bench

import (
	"os"
	"testing"
)

func TestCPUOfAProcess(t *testing.T) {
	const stat = "42 (a) (b c) S 1 1 1 0 -1 4194560 100 0 0 0 150 25 7 9 20 0 4 0 100 1000 10 0"
	if got, err := parseCPU(stat); err != nil || got != 1.75 {
		t.Errorf("%v, %v, want 1.75", got, err)
	}
	for _, bad := range []string{"", "42 (a) S 1", "42 (a) S 1 1 1 0 -1 4194560 100 0 0 0 x 25 7"} {
		if got, err := parseCPU(bad); err == nil {
			t.Errorf("%q: %v, want an error", bad, got)
		}
	}
	if _, err := cpuOf(os.Getpid()); err != nil {
		t.Error(err)
	}
}

func TestErrorsNameFewNodes(t *testing.T) {
	many := make([]int, 5000)
	for i := range many {
		many[i] = i
	}
	for want, nodes := range map[string][]int{
		"none": nil, "2: [3 8]": {3, 8}, "5000, the first of them [0 1 2 3 4]": many,
	} {
		if got := someOf(nodes); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
