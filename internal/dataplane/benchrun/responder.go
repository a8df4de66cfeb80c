package benchrun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Responder is the far end of the health benchmarks: TCP and HTTP servers without state at every IPv4 address, and the eye that
// sees when probes begin. See bpf/bench/responder.bpf.c.
type Responder struct {
	objects  responderObjects
	memory   *ebpf.Memory // of the starts
	at       link.Link
	config   responderResponderConfig
	interval time.Duration
}

// MaxWatched is how many targets can be watched.
const MaxWatched = 1 << 18

// startSize is the size of the record of a target's last start.
const startSize = int64(unsafe.Sizeof(responderResponderStart{}))

// OpenResponder loads the program.
func OpenResponder() (*Responder, error) {
	r := &Responder{}
	if err := loadResponderObjects(&r.objects, nil); err != nil {
		return nil, fmt.Errorf("load responder: %w", err)
	}
	memory, err := r.objects.Starts.Memory()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map the responder's starts: %w", err), r.objects.Close())
	}
	r.memory = memory
	return r, nil
}

// Attach puts the responder onto a device of the present namespace; answers leave by the same device.
func (r *Responder) Attach(ifindex int) (err error) {
	r.config.OutIfindex = uint32(ifindex)
	if err := r.configure(); err != nil {
		return err
	}
	r.at, err = attachLive(r.objects.Responder, ifindex)
	return err
}

// Close takes the program off its device.
func (r *Responder) Close() error {
	var err error
	if r.at != nil {
		err = r.at.Close()
	}
	return errors.Join(err, r.objects.Close())
}

func (r *Responder) configure() error {
	if err := r.objects.Config.Set(&r.config); err != nil {
		return fmt.Errorf("configure the responder: %w", err)
	}
	return nil
}

// Lose makes each frame, of either direction, be lost with the given odds, from 0 to below 1.
func (r *Responder) Lose(odds float64) error {
	r.config.Loss = uint32(odds * (1 << 32))
	return r.configure()
}

// Gone takes servers at consecutive addresses out, all at once, until it is called again: they refuse connections, or are silent.
func (r *Responder) Gone(first netip.Addr, servers int, silent bool) error {
	if !first.Is4() || servers < 0 {
		return fmt.Errorf("take out %d servers from %s: must be IPv4, not below 0", servers, first)
	}
	address := first.As4()
	r.config.GoneFirst, r.config.GoneTargets, r.config.GoneSilent = binary.BigEndian.Uint32(address[:]), uint32(servers), 0
	if silent {
		r.config.GoneSilent = 1
	}
	return r.configure()
}

// Watch forgets all that was counted and seen. From now on the starts of probes of targets, which are at consecutive addresses,
// are compared with the interval.
func (r *Responder) Watch(first netip.Addr, targets int, interval time.Duration) error {
	if targets > MaxWatched || !first.Is4() {
		return fmt.Errorf("watch %d targets from %s: must be at most %d, IPv4", targets, first, MaxWatched)
	}
	address := first.As4()
	r.config.First, r.config.Targets = binary.BigEndian.Uint32(address[:]), uint32(targets)
	r.config.IntervalNs, r.config.DeadlineNs, r.interval = uint64(interval), 0, interval
	if err := r.configure(); err != nil {
		return err
	}
	if _, err := r.memory.WriteAt(make([]byte, int64(targets)*startSize), 0); err != nil {
		return fmt.Errorf("clear the responder's starts: %w", err)
	}
	return r.Recount()
}

// Expect forgets all that was counted. From now on starts are counted, and those later than so much from now miss a deadline.
func (r *Responder) Expect(within time.Duration) error {
	now, err := monotonic()
	if err != nil {
		return err
	}
	r.config.IntervalNs, r.config.DeadlineNs, r.interval = 0, now+uint64(within), 0
	if err := r.configure(); err != nil {
		return err
	}
	return r.Recount()
}

// monotonic is the present time of the clock that programs read, in ns.
func monotonic() (uint64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return uint64(now.Nano()), nil
}

// Recount lets counting begin at 0; what was seen last of each target stays.
func (r *Responder) Recount() error {
	if err := r.objects.State.Set(&responderResponderState{}); err != nil {
		return fmt.Errorf("clear the responder: %w", err)
	}
	return nil
}

// Seen is what the responder counted.
type Seen struct {
	// Starts are SYNs that began a probe, Again those that were sent again, Requests what was asked over HTTP.
	Starts, Again, Requests uint64
	// Lost are the frames that it lost on purpose, Failed answers that it could not make, Strangers frames that were none of its
	// business.
	Lost, Failed, Strangers uint64
	// Missed are the deadlines that were missed. Of watched targets: the next probe did not begin within two intervals from the
	// last, or has not yet.
	Missed uint64
	// Lateness counts starts by the whole milliseconds by which they were farther from the last one of their target than an
	// interval; the last element has all that were later.
	Lateness []uint64
}

// Percentile is the lateness in ms that at least the share p of the starts did not exceed, rounded up; 0 without starts.
func (s Seen) Percentile(p float64) float64 {
	var total, upTo uint64
	for _, n := range s.Lateness {
		total += n
	}
	if total == 0 {
		return 0
	}
	for ms, n := range s.Lateness {
		if upTo += n; float64(upTo) >= p*float64(total) {
			return float64(ms + 1)
		}
	}
	return float64(len(s.Lateness))
}

// Seen reads what was counted until now.
func (r *Responder) Seen() (Seen, error) {
	var state responderResponderState
	if err := r.objects.State.Get(&state); err != nil {
		return Seen{}, fmt.Errorf("read the responder: %w", err)
	}
	s := Seen{
		Starts: state.Starts, Again: state.Again, Requests: state.Requests, Lost: state.Lost, Failed: state.Failed, Strangers: state.Strangers,
		Missed: state.Missed, Lateness: state.Lateness[:],
	}
	if r.interval == 0 {
		return s, nil
	}
	late, err := r.overdue()
	s.Missed += late
	return s, err
}

// overdue counts targets that were seen once, but not within the last two intervals.
func (r *Responder) overdue() (late uint64, err error) {
	starts := make([]byte, int64(r.config.Targets)*startSize)
	if _, err := r.memory.ReadAt(starts, 0); err != nil {
		return 0, fmt.Errorf("read the responder's starts: %w", err)
	}
	now, err := monotonic()
	if err != nil {
		return 0, err
	}
	for ; len(starts) > 0; starts = starts[startSize:] {
		at := binary.LittleEndian.Uint64(starts)
		if at != 0 && now-at > 2*uint64(r.interval) {
			late++
		}
	}
	return late, nil
}
