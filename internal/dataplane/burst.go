package dataplane

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Bounds of bursts (bpf/abi.h).
const (
	// BurstFrames is the most frames of a burst, QuickFrames of a quick one.
	BurstFrames = int(burstBurstLimitLIMIT_BURST_FRAMES)
	QuickFrames = int(burstBurstLimitLIMIT_BURST_QUICK)
	// BurstWindow is the most probes that a burst may have under way.
	BurstWindow = int(burstBurstLimitLIMIT_BURST_WINDOW)
	// burstTurns is how many turns of the program there are for each frame: those that find the window full send nothing, and
	// those behind the last frame are wasted.
	burstTurns = 2
	// batchSize is how many frames the kernel makes before it sends them.
	batchSize = 64
)

// BurstFrame is a frame of a burst: what begins the round of a probe.
type BurstFrame struct {
	// Number is the rule's, ISN its round's (ProbeTables.Begin).
	Number, ISN uint32
	// Ifindex is the device that the frame leaves by.
	Ifindex int32
	Data    []byte
}

// Burst sends many frames at once from within the kernel: one burst at a time, whose probes have a window as receive rings have
// room. It is for one goroutine. *LiveBurst is the real one.
type Burst interface {
	// Put makes frame i, below BurstFrames or QuickFrames, of the next burst; an error: it is too long. No burst may be under way.
	Put(i int, f BurstFrame) error
	// Start begins to send the first n frames, with so many probes under way at most that are younger than `young` and have no
	// final result. Of a quick sender it returns when all went that will, else at once.
	Start(n, window int, young time.Duration)
	// Sent is how many frames went, from the first on, and whether no more will: those behind are given back.
	Sent() (n int, ended bool)
	// At is when a frame went, CLOCK_MONOTONIC in nanoseconds.
	At(i int) int64
	// Idle says whether the next burst may be made; an error: the kernel cannot send bursts. It takes some 25 ms after the end,
	// but not with a quick sender.
	Idle() (bool, error)
	// Close waits for the end of the burst.
	Close() error
}

// BurstOpener is what probe tables implement that bursts can be sent for.
type BurstOpener interface {
	// OpenBurst loads a sender of bursts: a quick one, whose bursts are small and cost little beside what they send, or one of
	// long bursts, which costs the kernel much each time. An error: there are none of these here.
	OpenBurst(quick bool) (Burst, error)
}

// LiveBurst implements Burst by frames that the kernel makes for a program (BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18). Devices take them
// as those of another device's XDP program: of a veth the peer must have a program or GRO. What a device does not take is lost.
type LiveBurst struct {
	objects burstObjects
	memory  muxMemory
	frames  []burstBurstFrame
	state   *burstBurstState
	// repeat is the number of turns of the burst under way.
	repeat uint32
	// anchor makes it quick; nil: it is not.
	anchor *anchor
	// starts are told to the thread in the namespace; nil: who starts a quick burst is there himself. done comes back when it is quick.
	starts chan uint32
	done   chan struct{}
	frame  []byte // that the kernel makes its own of
	ended  sync.WaitGroup
	idle   atomic.Bool
	err    atomic.Pointer[error]
}

var (
	_ Burst       = (*LiveBurst)(nil)
	_ BurstOpener = (*Probes)(nil)
)

// OpenBurst implements BurstOpener. Bursts leave in the network namespace that the Mux was opened in, and end before it is closed.
// A sender is for the goroutine that opens it.
func (p *Probes) OpenBurst(quick bool) (Burst, error) {
	if p.namespace == nil {
		return nil, errors.New("open bursts of probes: the tables are of no mux")
	}
	spec, err := loadBurst()
	if err != nil {
		return nil, fmt.Errorf("read burst object: %w", err)
	}
	if quick {
		spec.Maps[burstMapBurstFrames].MaxEntries = uint32(QuickFrames)
	}
	results := spec.Maps[burstMapProbeResults]
	results.MaxEntries = p.resultsMap.MaxEntries()
	b := &LiveBurst{frame: make([]byte, int(burstBurstLimitLIMIT_BURST_BYTES))}
	err = spec.LoadAndAssign(&b.objects, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{burstMapProbeResults: p.resultsMap}})
	if err != nil {
		return nil, fmt.Errorf("load burst program: %w", err)
	}
	if quick {
		if b.anchor, err = dropAnchor(b.objects.Burst); err != nil {
			return nil, errors.Join(fmt.Errorf("open quick bursts of probes: %w", err), b.Close())
		}
	}
	var states []burstBurstState
	for _, err := range []error{
		mapTable(&b.memory, b.objects.BurstFrames, &b.frames), mapTable(&b.memory, b.objects.BurstStates, &states),
	} {
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	b.state = &states[0]
	b.idle.Store(true)
	if quick && p.here() {
		return b, nil
	}
	b.starts = make(chan uint32, 1)
	if quick {
		b.done = make(chan struct{})
	}
	entered := make(chan error)
	b.ended.Go(func() { b.run(p, entered) })
	if err := <-entered; err != nil {
		return nil, errors.Join(fmt.Errorf("open bursts of probes: %w", err), b.Close())
	}
	return b, nil
}

// here says whether the calling thread is in the network namespace of the tables.
func (p *Probes) here() bool {
	here, err := ownNamespace()
	if err != nil {
		return false
	}
	defer here.Close()
	a, err := here.Stat()
	if err != nil {
		return false
	}
	b, err := p.namespace.Stat()
	return err == nil && os.SameFile(a, b)
}

// ownNamespace is the network namespace of the calling thread.
func ownNamespace() (*os.File, error) {
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	return f, nil
}

// run sends bursts from a thread of its own, which ends with it: it stands in a namespace. A thread that is there already does not enter it, because
// that needs CAP_SYS_ADMIN, which the service units do not have.
func (b *LiveBurst) run(p *Probes, entered chan<- error) {
	runtime.LockOSThread()
	var err error
	if !p.here() {
		err = unix.Setns(int(p.namespace.Fd()), unix.CLONE_NEWNET)
	}
	entered <- err
	if err != nil {
		return
	}
	for repeat := range b.starts {
		b.call(repeat)
		if b.done != nil {
			b.done <- struct{}{}
		}
	}
}

// call has the kernel run the program so many times.
func (b *LiveBurst) call(repeat uint32) {
	_, err := b.objects.Burst.Run(&ebpf.RunOptions{
		Data: b.frame, Repeat: repeat, BatchSize: min(repeat, batchSize), Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES,
	})
	if err != nil {
		err = fmt.Errorf("send a burst of probes: %w", err)
		b.err.Store(&err)
	}
	b.idle.Store(true)
}

// Put implements Burst.
func (b *LiveBurst) Put(i int, f BurstFrame) error {
	r := &b.frames[i]
	if len(f.Data) < 14 || len(f.Data) > len(r.Bytes) {
		return fmt.Errorf("frame of %d bytes: must be 14 to %d", len(f.Data), len(r.Bytes))
	}
	r.Number, r.Isn, r.Ifindex, r.Length = f.Number, f.ISN, uint32(f.Ifindex), uint32(len(f.Data))
	copy(r.Bytes[:], f.Data)
	return nil
}

// Start implements Burst.
func (b *LiveBurst) Start(n, window int, young time.Duration) {
	if n < 1 || n > len(b.frames) || window < 1 || window > BurstWindow || !b.idle.Load() {
		panic(fmt.Sprintf("a burst of %d frames in a window of %d, idle: %t", n, window, b.idle.Load()))
	}
	*b.state = burstBurstState{Count: uint32(n), Window: uint32(window), Young: uint64(young)}
	b.repeat = uint32(n)
	if n > window {
		b.repeat = uint32(n)*burstTurns + uint32(window)
	}
	b.idle.Store(false)
	switch {
	case b.starts == nil:
		b.call(b.repeat)
	case b.done != nil:
		b.starts <- b.repeat
		<-b.done
	default:
		b.starts <- b.repeat
	}
}

// Sent implements Burst.
func (b *LiveBurst) Sent() (n int, ended bool) {
	ended = b.idle.Load() || atomic.LoadUint32(&b.state.Turns) >= b.repeat
	n = int(atomic.LoadUint32(&b.state.Next))
	return n, ended || n == int(b.state.Count)
}

// At implements Burst.
func (b *LiveBurst) At(i int) int64 { return int64(b.frames[i].At) }

// Idle implements Burst.
func (b *LiveBurst) Idle() (bool, error) {
	if err := b.err.Load(); err != nil {
		return true, *err
	}
	return b.idle.Load(), nil
}

// Close implements Burst.
func (b *LiveBurst) Close() error {
	if b.starts != nil {
		close(b.starts)
		b.ended.Wait()
	}
	b.memory.close()
	var err error
	if b.anchor != nil {
		err = b.anchor.raise()
	}
	return errors.Join(err, b.objects.Close())
}
