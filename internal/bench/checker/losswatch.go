package checker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/probe"
)

// lossWatch wraps a mux's tables. It records when probes of members failed and when the tables
// marked the members dead. Members are identified by the number of their target.
type lossWatch struct {
	dataplane.MuxTables
	job Job
	// targets holds the numbers of targets, plus 1, by the engine's numbers. began is when a probe
	// began, in ns.
	targets []atomic.Int32
	began   []atomic.Int64
	// fails is when a target's last probe failed, died when its member was marked dead, in ns. A
	// died of 0 means alive.
	fails, died []atomic.Int64
	count       atomic.Int64 // of the dead
	turned      chan struct{}
}

func newLossWatch(job Job) *lossWatch {
	n := job.Targets
	return &lossWatch{
		job: job, turned: make(chan struct{}, 1),
		targets: make([]atomic.Int32, 2*n), began: make([]atomic.Int64, 2*n), fails: make([]atomic.Int64, n), died: make([]atomic.Int64, n),
	}
}

// key returns the key of endpoint number i.
func (w *lossWatch) key(i int) lb.EndpointKey {
	return lb.EndpointKey{VIP: netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), Protocol: lb.TCP, Port: 80}
}

// member returns the number of a member's target.
func (w *lossWatch) member(key lb.EndpointKey, id uint16) int {
	a := key.VIP.As4()
	return int(id)*(w.job.Targets/Members) + int(binary.BigEndian.Uint16(a[2:]))
}

// SetAlive implements dataplane.MuxTables.
func (w *lossWatch) SetAlive(list []dataplane.MemberAlive) {
	w.MuxTables.SetAlive(list)
	now := monotonic()
	for _, m := range list {
		died, was := &w.died[w.member(m.Endpoint, m.Member)], int64(0)
		if !m.Alive {
			was = now
		}
		switch before := died.Swap(was); {
		case before == 0 && !m.Alive:
			w.count.Add(1)
		case before != 0 && m.Alive:
			w.count.Add(-1)
		}
	}
	notify.Send(w.turned)
}

func (w *lossWatch) dead() int { return int(w.count.Load()) }

// failed records the time of a failed probe unless the member is already dead.
func (w *lossWatch) failed(id uint32, at int64) {
	if i := w.targets[id].Load() - 1; i >= 0 && w.died[i].Load() == 0 {
		w.fails[i].Store(at)
	}
}

// silent records a probe that failed after took without a reply. Its first SYN was sent no earlier
// than it began.
func (w *lossWatch) silent(id uint32, took time.Duration) {
	w.failed(id, w.began[id].Load()+int64(took))
}

// wait waits until the first dead members, and no others, are dead.
func (w *lossWatch) wait(ctx context.Context, dead int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, lossWithin, fmt.Errorf("%d members are not dead within %s", dead, lossWithin))
	defer cancel()
	// Members may start as unknown, so poll the tables.
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for w.dead() != dead || dead == 0 && !w.alive() {
		select {
		case <-w.turned:
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %d are", context.Cause(ctx), w.dead())
		}
	}
	for i := range w.died {
		key, id := w.key(i%(w.job.Targets/Members)), uint16(i/(w.job.Targets/Members))
		if alive, known := w.MuxTables.Alive(key, id); alive != (i >= dead) || !known {
			return fmt.Errorf("member %d of %v: alive %v in the tables, which know it: %v", id, key, alive, known)
		}
	}
	return nil
}

// alive reports whether all members are alive in the tables.
func (w *lossWatch) alive() bool {
	for i := range w.died {
		if alive, _ := w.MuxTables.Alive(w.key(i%(w.job.Targets/Members)), uint16(i/(w.job.Targets/Members))); !alive {
			return false
		}
	}
	return true
}

// round summarizes a loss.
func (w *lossWatch) round() (r Loss) {
	var took []int64
	for i := range w.died {
		died, failed := w.died[i].Load(), w.fails[i].Load()
		if died == 0 {
			continue
		}
		r.FailedNS, r.OutNS = max(r.FailedNS, failed), max(r.OutNS, died)
		took = append(took, died-failed)
	}
	slices.Sort(took)
	r.P50NS, r.P99NS, r.MaxNS = took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
	return r
}

// lossWithin bounds the time until members change state.
const lossWithin = 2 * time.Minute

// monotonic returns CLOCK_MONOTONIC in nanoseconds, the clock of packet probe results.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic("read the monotonic clock: " + err.Error())
	}
	return t.Nano()
}

// watchedProbes wraps the probe tables and records when probes began and were refused.
type watchedProbes struct {
	*dataplane.Probes
	watch *lossWatch
}

// Begin implements dataplane.ProbeTables.
func (p *watchedProbes) Begin(number, isn uint32, port uint16) {
	p.watch.began[number].Store(monotonic())
	p.Probes.Begin(number, isn, port)
}

// Result implements dataplane.ProbeTables.
func (p *watchedProbes) Result(number, isn uint32) dataplane.ProbeResult {
	r := p.Probes.Result(number, isn)
	if r.State == dataplane.ProbeRefused {
		p.watch.failed(number, int64(r.Time))
	}
	return r
}

// watchedAsker records the target of each of the engine's numbers.
type watchedAsker struct {
	probe.Asker
	watch *lossWatch
}

// Add implements probe.Asker.
func (a *watchedAsker) Add(id uint32, t probe.Target) error {
	if int(id) >= len(a.watch.targets) {
		return errors.New("more targets than the job has")
	}
	first, at := a.watch.job.First.As4(), t.Address.Addr().As4()
	a.watch.targets[id].Store(int32(binary.BigEndian.Uint32(at[:])-binary.BigEndian.Uint32(first[:])) + 1)
	return a.Asker.Add(id, t)
}
