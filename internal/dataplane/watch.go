package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lb"
)

// MaxSnaplen is the most of a frame that a watch takes.
const MaxSnaplen = int(watchWatchLimitLIMIT_WATCH_BYTES)

// ErrWatched tells that somebody watches already.
var ErrWatched = errors.New("another capture runs on this mux")

// WatchFilter says which packets a watch takes.
type WatchFilter struct {
	VIP      netip.Addr
	Protocol lb.Protocol // 0: all
	// First and Last bound the destination port; Last 0 takes every packet to the VIP, those without ports too.
	First, Last uint16
	// Snaplen and SentSnaplen are the bytes taken of a frame as it came and as it left, 1 to MaxSnaplen.
	Snaplen, SentSnaplen int
}

// WatchEvent is what became of one packet.
type WatchEvent struct {
	Time time.Time
	// Action is the program's verdict: "drop", "pass", "tx", "redirect", "aborted".
	Action string
	// Reasons are all that were counted, in the order of bpf/abi/reason.h: the one that ended the packet, and those of
	// class info.
	Reasons []Reason
	// Length is that of the frame as it came, Data its first bytes.
	Length int
	Data   []byte
	// SentLength is that of the frame as it left, 0 when it did not; Sent are its first bytes.
	SentLength int
	Sent       []byte
}

// Watch is the program `mux_watch` in the place of `mux`.
type Watch struct {
	mux     *Mux
	objects watchObjectsInUse
	reader  *ringbuf.Reader
	// boot is when CLOCK_MONOTONIC was 0.
	boot  time.Time
	close sync.Once
}

// watchObjectsInUse leaves the object's own copy of `mux` out.
type watchObjectsInUse struct {
	Program *ebpf.Program `ebpf:"mux_watch"`
	Events  *ebpf.Map     `ebpf:"watch_events"`
	Lost    *ebpf.Map     `ebpf:"watch_lost"`
}

// Watch puts the watching program in the place of the mux's in one step: no packet is lost, and none is forwarded
// differently. There is at most one watch at a time.
func (m *Mux) Watch(f WatchFilter) (*Watch, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.watch != nil {
		return nil, ErrWatched
	}
	if m.former != nil {
		return nil, errors.New("watch: tables of another build still forward, until the first plan: try again then")
	}
	w := &Watch{mux: m}
	if err := w.load(f); err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	if err := m.runProgram(w.objects.Program); err != nil {
		err = errors.Join(err, m.runProgram(m.objects.Mux))
		w.release()
		return nil, fmt.Errorf("watch: %w", err)
	}
	m.watch = w
	return w, nil
}

// runProgram puts a program behind the mux's links.
func (m *Mux) runProgram(p *ebpf.Program) error {
	if m.link == nil {
		return nil // loaded only
	}
	links := []link.Link{m.link}
	for _, l := range m.others {
		links = append(links, l)
	}
	var errs []error
	for _, l := range links {
		if err := l.Update(p); err != nil {
			errs = append(errs, fmt.Errorf("replace XDP program: %w", err))
		}
	}
	return errors.Join(errs...)
}

// load loads the watching program around the mux's tables, with the mux's constants and variables.
func (w *Watch) load(f WatchFilter) error {
	if f.Snaplen < 1 || f.Snaplen > MaxSnaplen || f.SentSnaplen < 1 || f.SentSnaplen > MaxSnaplen {
		return fmt.Errorf("snaplen: %d and %d: must be 1 to %d", f.Snaplen, f.SentSnaplen, MaxSnaplen)
	}
	spec, err := loadWatch()
	if err != nil {
		return fmt.Errorf("read watch object: %w", err)
	}
	if err := shareVariables(spec, w.mux.spec); err != nil {
		return err
	}
	vip := f.VIP.As16()
	for name, value := range map[string]any{
		watchVarWatchVipHi: binary.NativeEndian.Uint64(vip[:8]), watchVarWatchVipLo: binary.NativeEndian.Uint64(vip[8:]),
		watchVarWatchProtocol: uint32(f.Protocol), watchVarWatchPortFirst: uint32(f.First), watchVarWatchPortLast: uint32(f.Last),
		watchVarWatchSnaplen: uint32(f.Snaplen), watchVarWatchSentSnaplen: uint32(f.SentSnaplen),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	tables := w.mux.objects.byName()
	maps.Copy(tables, w.mux.objects.ownMaps())
	tables[watchBSS] = w.mux.bss
	for name, m := range tables {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	if err := spec.LoadAndAssign(&w.objects, &ebpf.CollectionOptions{MapReplacements: tables}); err != nil {
		return fmt.Errorf("load program: %w", err)
	}
	if w.reader, err = ringbuf.NewReader(w.objects.Events); err != nil {
		w.release()
		return fmt.Errorf("open ring buffer: %w", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		w.release()
		return fmt.Errorf("read clock: %w", err)
	}
	w.boot = time.Now().Add(-time.Duration(now.Nano()))
	return nil
}

// watchBSS is the map of the variables that are no constants: both programs have the same one.
const watchBSS = ".bss"

// shareVariables gives one object's constants the values of another's, and checks that the variables of both lie at the
// same places.
func shareVariables(to, from *ebpf.CollectionSpec) error {
	to.Programs[watchProgMuxWatch].Flags = from.Programs[muxProgMux].Flags
	for name, v := range from.Variables {
		mine := to.Variables[name]
		switch {
		case mine == nil || mine.SectionName != v.SectionName:
			return fmt.Errorf("variable %s: is not in both objects: they are of different builds", name)
		case v.SectionName == watchBSS:
			if mine.Offset != v.Offset {
				return fmt.Errorf("variable %s: lies at %d and at %d: the objects are of different builds", name, mine.Offset, v.Offset)
			}
		default:
			mine.Value = bytes.Clone(v.Value)
		}
	}
	return nil
}

// Program is the watching program, for runs without an interface.
func (w *Watch) Program() *ebpf.Program { return w.objects.Program }

// Next waits for the next event. It returns io.EOF once the watch is closed, and os.ErrDeadlineExceeded when nothing came
// until the deadline; a zero one waits for ever.
func (w *Watch) Next(deadline time.Time) (WatchEvent, error) {
	w.reader.SetDeadline(deadline)
	record, err := w.reader.Read()
	switch {
	case errors.Is(err, ringbuf.ErrClosed):
		return WatchEvent{}, io.EOF
	case errors.Is(err, os.ErrDeadlineExceeded):
		return WatchEvent{}, os.ErrDeadlineExceeded
	case err != nil:
		return WatchEvent{}, fmt.Errorf("read ring buffer: %w", err)
	}
	return w.event(record.RawSample)
}

var actions = []string{"aborted", "drop", "pass", "tx", "redirect"}

func (w *Watch) event(raw []byte) (WatchEvent, error) {
	const head = int(unsafe.Offsetof(watchWatchEvent{}.Data))
	if len(raw) < head {
		return WatchEvent{}, fmt.Errorf("event of %d bytes: must be at least %d", len(raw), head)
	}
	var e watchWatchEvent
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&e)), head), raw)
	data := raw[head:]
	if uint64(e.Captured)+uint64(e.SentCaptured) > uint64(len(data)) {
		return WatchEvent{}, fmt.Errorf("event with %d bytes of frames: announces %d and %d", len(data), e.Captured, e.SentCaptured)
	}
	out := WatchEvent{
		Time: w.boot.Add(time.Duration(e.Time)), Length: int(e.Length), Data: data[:e.Captured:e.Captured],
		SentLength: int(e.SentLength), Sent: data[e.Captured:][:e.SentCaptured],
	}
	if int(e.Verdict) < len(actions) {
		out.Action = actions[e.Verdict]
	}
	for i, r := range MuxReasons().All {
		if e.Reasons>>i&1 != 0 {
			out.Reasons = append(out.Reasons, r)
		}
	}
	return out, nil
}

// Lost counts the packets of which nothing is told because the ring buffer was full; they were forwarded all the same.
func (w *Watch) Lost() (uint64, error) {
	var perCPU []uint64
	if err := w.objects.Lost.Lookup(uint32(0), &perCPU); err != nil {
		return 0, fmt.Errorf("read lost events: %w", err)
	}
	var sum uint64
	for _, n := range perCPU {
		sum += n
	}
	return sum, nil
}

// Close puts the mux's own program back and ends Next.
func (w *Watch) Close() error {
	var err error
	w.close.Do(func() {
		w.mux.mu.Lock()
		defer w.mux.mu.Unlock()
		err = w.mux.runProgram(w.mux.objects.Mux)
		w.mux.watch = nil
		w.release()
	})
	return err
}

func (w *Watch) release() {
	if w.reader != nil {
		w.reader.Close()
	}
	for _, c := range []io.Closer{w.objects.Program, w.objects.Events, w.objects.Lost} {
		c.Close()
	}
}
