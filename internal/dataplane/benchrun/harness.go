// Package benchrun runs data-plane programs in the kernel's test runner and times them, by the bench rules of the
// design: a front program makes every repeat a fresh packet of a random flow and calls the program under test; the
// front with an empty target is measured beside it and subtracted.
package benchrun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/cid"
	"github.com/shuntlb/shunt/internal/dataplane"
)

// xdpHasFrags is BPF_F_XDP_HAS_FRAGS: a program can only tail-call one that was loaded with the same flag.
const xdpHasFrags = unix.BPF_F_XDP_HAS_FRAGS

// stampPackets is the number of packets between two time stamps: long enough to hide the 30 ns that reading the clock
// takes, short enough that most stretches see no interrupt and, where others want the CPU too, no loss of it: the
// scheduler gives it for milliseconds at a time.
const (
	stampShift   = 9
	stampPackets = 1 << stampShift
)

// maxStretches and MaxPackets bound a run; runs are rounded up to a multiple of stampPackets.
const (
	maxStretches = len(frontFrontState{}.Stamps) - 1
	MaxPackets   = maxStretches * stampPackets
)

// Traffic says which packets a run is made of.
type Traffic struct {
	Family Family
	Flows  uint32 // flow numbers are below this, each equally likely
	VIPs   uint32
	// New makes every packet the SYN of a flow that was not seen before: numbers count up from Flows and never come
	// again.
	New bool
	// CookieMembers makes every packet carry the timestamp that a server echoed, with a cookie under CookieKey that names one of so many members.
	CookieMembers uint32
	// QUIC makes every packet one of QUIC, with a short header and a connection id that names one of so many members, by the only configuration of CIDs.
	QUIC uint32
	CIDs cid.Set
}

// CookieKey is the key of the traffic's cookies: key 0, any will do.
var CookieKey = [16]byte{0x63, 0x6f, 0x6f, 0x6b, 0x69, 0x65, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}

// Target is a program that can be measured.
type Target struct {
	name    string
	program *ebpf.Program
	plain   bool // of the host: packets of PlainVIP
}

// String returns the target's name.
func (t Target) String() string { return t.name }

// Harness holds the front program and the floor programs.
type Harness struct {
	front   frontObjects
	floor   floorObjects
	traffic Traffic
	frame   []byte
	fresh   uint32 // the next number of a flow that was not seen before
}

// Open loads the programs. Every target must have been loaded with the same setting of fragments (multi-buffer XDP).
func Open(traffic Traffic, frags bool) (*Harness, error) {
	h := &Harness{traffic: traffic, frame: template(traffic.Family), fresh: traffic.Flows}
	if traffic.CookieMembers > 0 {
		h.frame = withTimestamps(h.frame, traffic.Family)
	}
	if traffic.QUIC > 0 && traffic.Family != IPv4 {
		return nil, errors.New("packets of QUIC: must be IPv4")
	}
	if traffic.QUIC > 0 {
		h.frame = templateQUIC()
	}
	if err := load(loadFront, &h.front, frags); err != nil {
		return nil, fmt.Errorf("load front program: %w", err)
	}
	if err := load(loadFloor, &h.floor, frags); err != nil {
		h.front.Close()
		return nil, fmt.Errorf("load floor programs: %w", err)
	}
	if traffic.QUIC > 0 {
		if err := h.writeCIDs(); err != nil {
			h.Close()
			return nil, err
		}
	}
	return h, nil
}

// load loads the objects of one source, with or without the fragments flag.
func load(read func() (*ebpf.CollectionSpec, error), objects any, frags bool) error {
	spec, err := read()
	if err != nil {
		return err
	}
	for _, p := range spec.Programs {
		if frags {
			p.Flags |= xdpHasFrags
		}
	}
	return spec.LoadAndAssign(objects, nil)
}

// Close frees the programs.
func (h *Harness) Close() error { return errors.Join(h.front.Close(), h.floor.Close()) }

// Null is the empty target.
func (h *Harness) Null() Target { return Target{name: "null", program: h.floor.FloorNull} }

// Floor is the target that only encapsulates, in the family of the traffic.
func (h *Harness) Floor() Target {
	if h.traffic.Family == IPv4 {
		return Target{name: "floor", program: h.floor.FloorIp4}
	}
	return Target{name: "floor", program: h.floor.FloorIp6}
}

// Run is what one run of a target gave.
type Run struct {
	// Stretches are the times per packet, in ns, of the consecutive stretches of stampPackets packets.
	Stretches []float64
	Packets   uint64 // that went through the target, those of interrupted attempts included
	Verdict   uint32 // of the last packet
	Last      dataplane.Packet
	Frame     []byte // the last packet as the target left it
}

// Run sends at least the given number of packets (at most MaxPackets) through the target.
func (h *Harness) Run(t Target, packets int, seed uint64) (Run, error) {
	stretches := (packets + stampPackets - 1) / stampPackets
	if stretches < 1 || stretches > maxStretches {
		return Run{}, fmt.Errorf("run %s: %d packets: must be 1 to %d", t, packets, MaxPackets)
	}
	o := order{flags: tcpACK}
	if h.traffic.New {
		o = order{flags: tcpSYN, counted: true, begin: h.fresh}
	}
	// One packet more than the stretches: it makes the last stamp.
	run, state, err := h.run(t, uint32(stretches*stampPackets+1), o, seed)
	h.fresh += uint32(run.Packets)
	if err != nil {
		return Run{}, err
	}
	for i := range stretches {
		run.Stretches = append(run.Stretches, float64(state.Stamps[i+1]-state.Stamps[i])/stampPackets)
	}
	return run, nil
}

// One sends a single packet, of the given flow, through the target.
func (h *Harness) One(t Target, flow uint32) (Run, error) {
	run, _, err := h.run(t, 1, order{flags: tcpACK, counted: true, begin: flow}, 1)
	return run, err
}

// warmShift is the binary logarithm of the packets that Warm sends of each flow: the first is remembered, the second is
// trusted.
const warmShift = 1

// Warm sends packets of every flow below Traffic.Flows through the target, so that it knows them all. It returns the
// number of packets.
func (h *Harness) Warm(t Target) (packets uint64, err error) {
	for begin := uint32(0); begin < h.traffic.Flows; {
		flows := min(h.traffic.Flows-begin, uint32(MaxPackets)>>warmShift)
		run, _, err := h.run(t, flows<<warmShift, order{tcpACK, true, begin, warmShift}, 1)
		if err != nil {
			return packets, err
		}
		packets, begin = packets+run.Packets, begin+flows
	}
	return packets, nil
}

// introducedAtOnce is how many flows Introduce shows before it proves them: so few that hardly three are neighbours in a table.
const introducedAtOnce = 1 << 12

// Introduce is Warm for records that believe a second packet only if it is no copy of the first: it has data.
func (h *Harness) Introduce(t Target) error {
	first := h.frame
	defer func() { h.frame = first }()
	for begin := uint32(0); begin < h.traffic.Flows; begin += introducedAtOnce {
		for _, h.frame = range [][]byte{first, withData(first, h.traffic.Family)} {
			if _, _, err := h.run(t, min(h.traffic.Flows-begin, introducedAtOnce), order{tcpACK, true, begin, 0}, 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// order says which packets a run has: TCP flags, and flows with random numbers or with those counted up from begin, each
// 1<<repeatShift times.
type order struct {
	flags              byte
	counted            bool
	begin, repeatShift uint32
}

// run points the front at the target and starts the kernel's test runner.
func (h *Harness) run(t Target, repeat uint32, o order, seed uint64) (Run, frontFrontState, error) {
	var state frontFrontState
	config := h.config(o)
	fail := func(step string, err error) (Run, frontFrontState, error) {
		return Run{}, state, fmt.Errorf("run %s: %s: %w", t, step, err)
	}
	if err := h.front.Targets.Put(uint32(0), t.program); err != nil {
		return fail("set the tail call", err)
	}
	if err := h.front.Config.Set(&config); err != nil {
		return fail("write the configuration", err)
	}
	start := frontFrontState{Random: seed | 1<<63, Next: o.begin}
	if err := h.front.State.Set(&start); err != nil {
		return fail("write the state", err)
	}
	var run Run
	// The runner gives up on a signal and is called again: what ran until then is thrown away but counted, and flows
	// that were new are not new any more.
	again := func() {
		if err := h.front.State.Get(&state); err == nil {
			run.Packets += state.Packets
			if h.traffic.New {
				start.Next += uint32(state.Packets)
			}
		}
		_ = h.front.State.Set(&start)
	}
	options := ebpf.RunOptions{Data: h.frame, DataOut: make([]byte, 2*len(config.Frame)), Repeat: repeat, Reset: again}
	verdict, err := h.front.Front.Run(&options)
	if err != nil {
		return fail("test run", err)
	}
	if err := h.front.State.Get(&state); err != nil {
		return fail("read the state", err)
	}
	if state.UndoFailed != 0 || state.Packets != uint64(repeat) {
		return fail("check", fmt.Errorf("%d packets instead of %d, %d of them not undone", state.Packets, repeat, state.UndoFailed))
	}
	run.Packets += state.Packets
	run.Verdict, run.Frame, run.Last = verdict, options.DataOut, h.traffic.packet(state.Flow)
	return run, state, nil
}

// config describes the traffic to the front program.
func (h *Harness) config(o order) frontFrontConfig {
	c := frontFrontConfig{
		FrameLen: uint32(len(h.frame)),
		Family:   uint32(h.traffic.Family),
		Flows:    h.traffic.Flows,
		Vips:     h.traffic.VIPs,

		RepeatShift: o.repeatShift,
		StampShift:  stampShift,
		PortBe:      bits.ReverseBytes16(Port),

		CookieMembers: h.traffic.CookieMembers,
	}
	if h.traffic.QUIC > 0 {
		c.Cids = 1
	}
	c.CookieKey.K0, c.CookieKey.K1 = binary.LittleEndian.Uint64(CookieKey[:8]), binary.LittleEndian.Uint64(CookieKey[8:])
	if o.counted {
		c.Ordered = 1
	}
	copy(c.Frame[:], h.frame)
	c.Frame[h.traffic.Family.flagsAt()] = o.flags
	if h.traffic.Family == IPv4 {
		client, vip := client4.As4(), vip4.As4()
		c.Client4, c.Vip4 = binary.BigEndian.Uint32(client[:]), binary.BigEndian.Uint32(vip[:])
		c.Sum4 = storedSum(h.frame[ethLen : ethLen+ip4Len])
	}
	return c
}

// Middle is the median of the stretches, in ns per packet: stretches that an interrupt or another task lengthened do
// not move it.
func (r Run) Middle() float64 {
	sorted := slices.Sorted(slices.Values(r.Stretches))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Outer reads the outer header of the last packet.
func (r Run) Outer(inner Family) (Outer, error) { return parseOuter(r.Frame, inner) }
