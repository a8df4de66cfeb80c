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

// coreTime is what one CPU had done at a moment. What it is busy with, softirqs included, is all that it does not idle: times by
// kind are sampled with the kernel's tick, idle time is measured.
type coreTime struct {
	at time.Duration // CLOCK_MONOTONIC
	// idle is when nothing ran, I/O waited for included; stolen when the hypervisor gave the CPU to others.
	idle, stolen time.Duration
}

// readCore reads the times of a CPU. The thread that reads runs there: the kernel books idle time when it ends.
func readCore(cpu int) (t coreTime, err error) {
	err = benchrun.Pinned(cpu, func() error {
		stat, err := os.ReadFile("/proc/stat")
		if err != nil {
			return fmt.Errorf("read CPU times: %w", err)
		}
		if t.idle, t.stolen, err = parseCoreStat(stat, cpu); err != nil {
			return err
		}
		// In ns instead of ticks of 10 ms, where the kernel tells; only root may read it.
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

// parseCoreStat reads the line of a CPU in /proc/stat (proc(5)): "cpuN", user, nice, system, idle, iowait, irq, softirq, steal.
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

// parseTimerList reads a CPU's idle time in /proc/timer_list: below "cpu: N" stand ".idle_sleeptime : N nsecs" and
// ".iowait_sleeptime: N nsecs".
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

// since is how long the CPU was busy, and how long that was to be measured.
func (t coreTime) since(then coreTime) (busy, took time.Duration) {
	took = t.at - then.at
	return took - (t.idle - then.idle) - (t.stolen - then.stolen), took
}

// busyness is the share of the time that a CPU is busy with nothing in particular.
type busyness float64

// baseline is the share of the time that the CPU was busy.
func (t coreTime) baseline(then coreTime) busyness {
	busy, took := t.since(then)
	if took <= 0 {
		return 0
	}
	return busyness(max(0, float64(busy)/float64(took)))
}

// spent is the busy time in seconds beyond the baseline.
func (t coreTime) spent(then coreTime, base busyness) float64 {
	busy, took := t.since(then)
	return max(0, busy.Seconds()-float64(base)*took.Seconds())
}
