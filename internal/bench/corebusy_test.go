package bench

import (
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
)

func TestCoreStat(t *testing.T) {
	stat := []byte("cpu  1 2 3 4 5 6 7 8 9 10\ncpu1 1 1 1 1 1 1 1 1 0 0\ncpu11 10 20 30 400 50 60 70 80 7 0\nintr 5\n")
	idle, stolen, err := parseCoreStat(stat, 11)
	if err != nil || idle != 4500*time.Millisecond || stolen != 800*time.Millisecond {
		t.Errorf("idle %v, stolen %v, %v: want 4.5 s (idle and waiting for I/O) and 0.8 s", idle, stolen, err)
	}
	for _, wrong := range []string{"", "cpu11 1 2 3", "cpu11 1 2 3 x 5 6 7 8"} {
		if _, _, err := parseCoreStat([]byte(wrong), 11); err == nil {
			t.Errorf("%q: was read", wrong)
		}
	}
}

func TestTimerList(t *testing.T) {
	timers := []byte("Timer List Version: v0.10\nnow at 99 nsecs\n\ncpu: 1\n # expires at 5-5 [in 1 to 1 nsecs]\n  .idle_sleeptime : 1000 nsecs\n" +
		"  .iowait_sleeptime: 200 nsecs\ncpu: 11\n  .idle_sleeptime : 3000 nsecs\n  .iowait_sleeptime: 400 nsecs\n")
	for cpu, want := range map[int]time.Duration{1: 1200, 11: 3400} {
		if got, err := parseTimerList(timers, cpu); err != nil || got != want {
			t.Errorf("CPU %d idled %v, %v: want %v", cpu, got, err, want)
		}
	}
	if _, err := parseTimerList(timers, 0); err == nil {
		t.Error("CPU 0 is not there")
	}
	if _, err := parseTimerList([]byte("cpu: 1\n .idle_sleeptime : x nsecs\n .iowait_sleeptime: 1 nsecs\n"), 1); err == nil {
		t.Error("a time that is no number was read")
	}
}

// In one second the CPU idled for 600 ms and 100 ms were stolen. It is 10 % busy with other work,
// so 200 ms are the checker's.
func TestSpentIsBusyBeyondTheBaseline(t *testing.T) {
	then := coreTime{at: 10 * time.Second, idle: 5 * time.Second, stolen: time.Second}
	now := coreTime{at: 11 * time.Second, idle: 5600 * time.Millisecond, stolen: 1100 * time.Millisecond}
	if busy, took := now.since(then); busy != 300*time.Millisecond || took != time.Second {
		t.Errorf("busy %v of %v", busy, took)
	}
	quiet := coreTime{at: then.at, idle: then.idle}
	base := coreTime{at: quiet.at + time.Second, idle: quiet.idle + 900*time.Millisecond}.baseline(quiet)
	if base < 0.0999 || base > 0.1001 {
		t.Errorf("baseline %v, want 0.1", base)
	}
	if got := now.spent(then, base); got < 0.1999 || got > 0.2001 {
		t.Errorf("spent %v s, want 0.2", got)
	}
	if got := now.spent(then, 0.9); got != 0 {
		t.Errorf("spent %v s where others had it all", got)
	}
	if got := then.baseline(then); got != 0 {
		t.Errorf("baseline of no time: %v", got)
	}
}

// This kernel reports every value, and no time decreases.
func TestReadCore(t *testing.T) {
	cpu, err := benchrun.LastCPU()
	if err != nil {
		t.Fatal(err)
	}
	first, err := readCore(cpu)
	if err != nil {
		t.Fatal(err)
	}
	second, err := readCore(cpu)
	if err != nil {
		t.Fatal(err)
	}
	if first.idle <= 0 || second.at <= first.at || second.idle < first.idle || second.stolen < first.stolen {
		t.Errorf("read %+v, then %+v", first, second)
	}
}
