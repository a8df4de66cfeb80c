package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
)

// coreTime holds the accumulated times of one CPU. Its busy time, softirqs included, is all time
// that is not idle, because idle time is measured, while times by kind are sampled with the
// kernel's tick.
type coreTime struct {
	at time.Duration // CLOCK_MONOTONIC
	// idle is the time in which nothing ran, I/O wait included. stolen is the time that the
	// hypervisor gave the CPU to others.
	idle, stolen time.Duration
}

// readCore reads the times of a CPU. The reading thread runs on that CPU, because the kernel
// accounts idle time when it ends.
func readCore(cpu int) (t coreTime, err error) {
	err = benchrun.Pinned(cpu, func() error {
		stat, err := os.ReadFile("/proc/stat")
		if err != nil {
			return fmt.Errorf("read CPU times: %w", err)
		}
		if t.idle, t.stolen, err = parseCoreStat(stat, cpu); err != nil {
			return err
		}
		// Prefer ns to ticks of 10 ms where the kernel reports them. Only root may read the file.
		if timers, err := os.ReadFile("/proc/timer_list"); err == nil {
			if idle, err := parseTimerList(timers, cpu); err == nil {
				t.idle = idle
			}
		}
		var now unix.Timespec
		err = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
		t.at = time.Duration(now.Nano())
		return err
	})
	return t, err
}

// coreTick is the unit of /proc/stat.
const coreTick = time.Second / ticksPerSecond

// parseCoreStat reads the line of a CPU in /proc/stat (proc(5)): "cpuN", user, nice, system, idle,
// iowait, irq, softirq, steal.
func parseCoreStat(stat []byte, cpu int) (idle, stolen time.Duration, err error) {
	name := "cpu" + strconv.Itoa(cpu)
	for line := range bytes.Lines(stat) {
		fields := bytes.Fields(line)
		if len(fields) < 9 || string(fields[0]) != name {
			continue
		}
		var ticks [9]time.Duration
		for _, i := range []int{4, 5, 8} {
			n, err := strconv.ParseInt(string(fields[i]), 10, 64)
			if err != nil {
				return 0, 0, fmt.Errorf("read CPU times: %w", err)
			}
			ticks[i] = time.Duration(n) * coreTick
		}
		return ticks[4] + ticks[5], ticks[8], nil
	}
	return 0, 0, fmt.Errorf("read CPU times: /proc/stat has no %s", name)
}

// parseTimerList reads a CPU's idle time in /proc/timer_list: ".idle_sleeptime : N nsecs" and
// ".iowait_sleeptime: N nsecs" below "cpu: N".
func parseTimerList(timers []byte, cpu int) (idle time.Duration, err error) {
	here, found := false, 0
	for line := range bytes.Lines(timers) {
		name, value, ok := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		value = bytes.TrimSuffix(bytes.TrimSpace(value), []byte(" nsecs"))
		switch name := string(bytes.TrimSpace(name)); {
		case !ok:
		case name == "cpu":
			here = string(value) == strconv.Itoa(cpu)
		case here && (name == ".idle_sleeptime" || name == ".iowait_sleeptime"):
			n, err := strconv.ParseInt(string(value), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read idle time: %w", err)
			}
			idle += time.Duration(n)
			found++
		}
	}
	if found != 2 {
		return 0, errors.New("read idle time: /proc/timer_list does not tell")
	}
	return idle, nil
}

// since returns the busy time and the wall time since then.
func (t coreTime) since(then coreTime) (busy, took time.Duration) {
	took = t.at - then.at
	return took - (t.idle - then.idle) - (t.stolen - then.stolen), took
}

// busyness is the share of the time that a CPU is busy without the measured load.
type busyness float64

// baseline returns the share of the time that the CPU was busy.
func (t coreTime) baseline(then coreTime) busyness {
	busy, took := t.since(then)
	if took <= 0 {
		return 0
	}
	return busyness(max(0, float64(busy)/float64(took)))
}

// spent returns the busy time in seconds in excess of the baseline.
func (t coreTime) spent(then coreTime, base busyness) float64 {
	busy, took := t.since(then)
	return max(0, busy.Seconds()-float64(base)*took.Seconds())
}
