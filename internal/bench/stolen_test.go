package bench

import "testing"

func TestStolen(t *testing.T) {
	then := parseCPUTime([]byte("cpu  100 10 50 800 20 5 15 0 7 0\ncpu0 1 2 3\n"))
	now := parseCPUTime([]byte("cpu  200 10 100 900 20 5 15 250 7 0\n"))
	if then.Total != 1000 || now.Total != 1500 {
		t.Fatalf("totals %d and %d, want 1000 and 1500: guest time counts once", then.Total, now.Total)
	}
	if got := now.StolenSince(then); got != 0.5 {
		t.Errorf("stolen %v, want half", got)
	}
	if text := StolenText(0.5); text != "the hypervisor gave 50 % of this machine's CPU time to others meanwhile" {
		t.Error(text)
	}
	for _, wrong := range []string{"", "cpu", "cpu 1 2 3 4 5 6 7", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8 9"} {
		if got := parseCPUTime([]byte(wrong)); got != (CPUTime{}) {
			t.Errorf("%q: %+v", wrong, got)
		}
	}
	if StolenText(then.StolenSince(now)) != "" || StolenText(0.01) != "" {
		t.Error("nothing worth telling is told")
	}
}
