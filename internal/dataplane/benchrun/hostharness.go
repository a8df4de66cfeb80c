package benchrun

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/cookie"
)

// HostWay is the direction of the packets that a program of the host is given.
type HostWay int

// The two ways.
const (
	// HostIn: packets of clients in an IPv4 tunnel.
	HostIn HostWay = iota
	// HostOut: answers of servers.
	HostOut
)

// Verdicts of tcx programs (linux/pkt_cls.h).
const (
	tcxNext     = 1<<32 - 1
	tcxRedirect = 7
)

// HostTraffic says which packets a run of the host's programs is made of: IPv4, TCP, HostDIPs servers of one VIP.
type HostTraffic struct {
	Way   HostWay
	Flows uint32 // flow numbers are below this, each equally likely
	// New makes every packet the SYN of a flow that was not seen before: numbers count up from Flows and never come again.
	New bool
	// Stamped gives packets timestamps, whose echoes carry the cookie of the server under HostCookieKey.
	Stamped bool
}

// HostCookieKey is the key of epoch 1 of the cookies of HostVIP; the member id of server i is i.
var HostCookieKey = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

// HostHarness holds the front programs of both ways and the floors.
type HostHarness struct {
	objects hostfrontObjects
	host    *Host
	traffic HostTraffic
	frames  [2][]byte // by HostWay
	fresh   uint32    // the next number of a flow that was not seen before
	sent    uint32    // packets, which sequence numbers count
	stamped stamped
}

// stampedShift: servers' clocks go on every 1 << stampedShift packets, so that no flow's does so by half a turn in all runs together.
const stampedShift = 12

// stamped is the traffic with timestamps.
type stamped struct {
	mapped []byte
	echoes []uint64 // by flow
	time   uint32   // of servers, when the flows began
}

// OpenHostHarness loads the fronts. Runs must be made in the host's namespace.
func OpenHostHarness(host *Host, traffic HostTraffic) (*HostHarness, error) {
	bare := template4()
	if traffic.Stamped {
		bare = withTimestamps(bare, IPv4)
	}
	h := &HostHarness{host: host, traffic: traffic, fresh: traffic.Flows, frames: [2][]byte{hostFrameIn(bare), bare}, stamped: stamped{time: 1 << 20}}
	spec, err := loadHostfront()
	if err != nil {
		return nil, fmt.Errorf("load fronts of the host: %w", err)
	}
	spec.Maps[hostfrontMapEchoes].MaxEntries = max(traffic.Flows, 1)
	if err := spec.LoadAndAssign(&h.objects, nil); err != nil {
		return nil, fmt.Errorf("load fronts of the host: %w", err)
	}
	if err := h.mapEchoes(); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// mapEchoes maps what packets of clients echo.
func (h *HostHarness) mapEchoes() (err error) {
	e := h.objects.Echoes
	size := (int(e.MaxEntries()*e.ValueSize()) + os.Getpagesize() - 1) &^ (os.Getpagesize() - 1)
	if h.stamped.mapped, err = unix.Mmap(e.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map the echoes: %w", err)
	}
	h.stamped.echoes = unsafe.Slice((*uint64)(unsafe.Pointer(&h.stamped.mapped[0])), e.MaxEntries())
	return nil
}

// Close frees the programs.
func (h *HostHarness) Close() error {
	if h.stamped.mapped != nil {
		unix.Munmap(h.stamped.mapped) //nolint:errcheck // it is not used any more
	}
	return h.objects.Close()
}

// In is the program of packets that come, Out that of packets that leave.
func (h *HostHarness) In() Target {
	in, _ := h.host.Programs()
	return Target{name: "host_in", program: in}
}

// Out is described at In.
func (h *HostHarness) Out() Target {
	_, out := h.host.Programs()
	return Target{name: "host_out", program: out}
}

// InPlain and OutPlain are the targets that In and Out are, with packets of PlainVIP, whose flows have no cookies.
func (h *HostHarness) InPlain() Target {
	t := h.In()
	t.plain = true
	return t
}

// OutPlain is described at InPlain.
func (h *HostHarness) OutPlain() Target {
	t := h.Out()
	t.plain = true
	return t
}

// Null is the empty target.
func (h *HostHarness) Null() Target {
	if h.traffic.Way == HostOut {
		return Target{name: "null", program: h.objects.NullOut}
	}
	return Target{name: "null", program: h.objects.NullIn}
}

// FloorIn is the target that takes the outer header off and sends the packet on by a device, FloorRepair the one that does the latter only.
func (h *HostHarness) FloorIn() Target { return Target{name: "floor", program: h.objects.FloorIn} }

// FloorRepair is described at FloorIn.
func (h *HostHarness) FloorRepair() Target {
	return Target{name: "floor", program: h.objects.FloorRepair}
}

// HelpersIn, HelpersOut and HelpersRepair are targets that ask of the kernel what the host's programs do for a packet of their kind, and do
// nothing else.
func (h *HostHarness) HelpersIn() Target {
	return Target{name: "helpers", program: h.objects.HelpersIn}
}

// HelpersOut is described at HelpersIn.
func (h *HostHarness) HelpersOut() Target {
	return Target{name: "helpers", program: h.objects.HelpersOut}
}

// HelpersRepair is described at HelpersIn.
func (h *HostHarness) HelpersRepair() Target {
	return Target{name: "helpers", program: h.objects.HelpersRepair}
}

// Compare measures null, floor and programs of the traffic's way in turns, as Harness.Compare does.
func (h *HostHarness) Compare(ctx context.Context, floor Target, programs []Target, e Effort, progress func(round int)) (Comparison, error) {
	return compare(ctx, append([]Target{h.Null(), floor}, programs...), e, h.timed, progress)
}

// timed runs a target without the first eighth of its stretches, and checks the verdict on the last packet.
func (h *HostHarness) timed(t Target, packets int, seed uint64) (Run, error) {
	stretches := (packets + stampPackets - 1) / stampPackets
	if stretches < 1 || stretches > maxStretches {
		return Run{}, fmt.Errorf("run %s: %d packets: must be 1 to %d", t, packets, MaxPackets)
	}
	o := hostOrder{flags: tcpACK, stampShift: stampShift}
	if h.traffic.New {
		o.flags, o.counted, o.begin = tcpSYN, true, h.fresh
	}
	run, state, err := h.run(t, h.traffic.Way, uint32(stretches*stampPackets+1), o, seed)
	if h.traffic.New {
		h.fresh += uint32(run.Packets)
	}
	if err != nil {
		return run, err
	}
	if run.Verdict != tcxNext && run.Verdict != tcxRedirect {
		return run, fmt.Errorf("run %s: verdict %d for flow %d: want %d or %d", t, int32(run.Verdict), state.Flow, -1, tcxRedirect)
	}
	for i := stretches / 8; i < stretches; i++ {
		run.Stretches = append(run.Stretches, float64(state.Stamps[i+1]-state.Stamps[i])/stampPackets)
	}
	return run, nil
}

// Warm makes the flows numbered from begin on known and trusted: a packet of the client, then one of the server, of so many at a time that
// those in between have room.
func (h *HostHarness) Warm(begin, flows uint32) error {
	const chunk = 1 << 12
	for at := uint32(0); at < flows; at += chunk {
		n := min(flows-at, chunk)
		targets := []Target{h.In(), h.Out()}
		if h.traffic.Stamped {
			targets = append(targets, h.InPlain(), h.OutPlain())
		}
		for i, t := range targets {
			o := hostOrder{flags: tcpACK, counted: true, begin: begin + at, stampShift: stampShift}
			if _, _, err := h.run(t, HostWay(i%2), n, o, 1); err != nil {
				return err
			}
		}
		if !h.traffic.Stamped {
			continue
		}
		if err := h.shake(begin+at, n); err != nil {
			return err
		}
	}
	return nil
}

// shake gives flows their clocks: by the answer to a SYN at the server's time, and the echo of that, which is what clients' packets have from then on.
func (h *HostHarness) shake(begin, flows uint32) error {
	o := hostOrder{flags: tcpSYN | tcpACK, counted: true, begin: begin, stampShift: stampShift, standing: true}
	if _, _, err := h.run(h.Out(), HostOut, flows, o, 1); err != nil {
		return err
	}
	vip := netip.AddrPortFrom(HostVIP(), Port)
	for i := range flows {
		ids := flowIDsOf(begin+i, 1)
		prf := cookie.PRF(HostCookieKey, cookie.Flow{Client: netip.AddrPortFrom(add4(client4, ids.client), ids.port), VIP: vip})
		c := cookie.Encode(prf, 1, uint16((begin+i)%HostDIPs), cookie.SecretOf(HostCookieKey))
		h.stamped.echoes[begin+i] = uint64(cookie.HostBits.Place(h.stamped.time, uint32(c)))
	}
	o.flags = tcpACK
	_, _, err := h.run(h.In(), HostIn, flows, o, 1)
	return err
}

// MaxEach is the most packets of one call of Each.
const MaxEach = maxStretches

// Each sends a packet of each of so many flows counted up from begin, SYNs when told so, and returns the ns that each but the last took:
// front, clock and whatever interrupted it included.
func (h *HostHarness) Each(way HostWay, begin uint32, packets int, syn bool) ([]float64, error) {
	if packets < 1 || packets > MaxEach {
		return nil, fmt.Errorf("time each of %d packets: must be 1 to %d", packets, MaxEach)
	}
	t := h.In()
	if way == HostOut {
		t = h.Out()
	}
	o := hostOrder{flags: tcpACK, counted: true, begin: begin}
	if syn {
		o.flags = tcpSYN
	}
	_, state, err := h.run(t, way, uint32(packets), o, 1)
	if err != nil {
		return nil, err
	}
	out := make([]float64, packets-1)
	for i := range out {
		out[i] = float64(state.Stamps[i+1] - state.Stamps[i])
	}
	return out, nil
}

// HostPacket is a frame as a program of the host left it, and the flow that it is of.
type HostPacket struct {
	Verdict uint32
	// Outer is the outer header; none is the zero value.
	Outer               Outer
	Source, Destination netip.AddrPort
	Client              netip.AddrPort
	DIP                 netip.Addr
}

// Redirected tells whether the packet goes on by a device, Passed whether by its own way.
func (p HostPacket) Redirected() bool { return p.Verdict == tcxRedirect }

// Passed is described at Redirected.
func (p HostPacket) Passed() bool { return p.Verdict == tcxNext }

// One sends a single packet of the given flow through the program of the traffic's way.
func (h *HostHarness) One(t Target, flow uint32) (HostPacket, error) {
	run, _, err := h.run(t, h.traffic.Way, 1, hostOrder{flags: tcpACK, counted: true, begin: flow}, 1)
	if err != nil {
		return HostPacket{}, err
	}
	ids := flowIDsOf(flow, 1)
	p := HostPacket{Verdict: run.Verdict, Client: netip.AddrPortFrom(add4(client4, ids.client), ids.port), DIP: HostDIP(int(flow % HostDIPs))}
	ip := run.Frame[ethLen:]
	if ip[9] == protoIPIP {
		if p.Outer, err = parseOuter(run.Frame, IPv4); err != nil {
			return p, err
		}
		ip = ip[ip4Len:]
	}
	if sum := storedSum(ip[:ip4Len]); sum != 0xffff || ip[9] != protoTCP {
		return p, fmt.Errorf("flow %d: IPv4 header % x: bad checksum or no TCP", flow, ip[:ip4Len])
	}
	p.Source = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:16])), binary.BigEndian.Uint16(ip[ip4Len:]))
	p.Destination = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:20])), binary.BigEndian.Uint16(ip[ip4Len+2:]))
	return p, nil
}

// hostOrder says which packets a run has: TCP flags, flows with random numbers or with those counted up from begin, and how often time is
// stamped.
type hostOrder struct {
	flags      byte
	counted    bool
	begin      uint32
	stampShift uint32
	standing   bool // of a handshake: the server's clock has not moved yet, and sequence numbers count from 0, so that the ACK is acceptable
}

// hostContext is the beginning of struct __sk_buff (linux/bpf.h): the device that the packet came in or leaves by.
type hostContext struct {
	_       [10]uint32
	Ifindex uint32
}

// run points the front of a way at the target and starts the kernel's test runner.
func (h *HostHarness) run(t Target, way HostWay, repeat uint32, o hostOrder, seed uint64) (Run, hostfrontHostProgress, error) {
	var state hostfrontHostProgress
	fail := func(step string, err error) (Run, hostfrontHostProgress, error) {
		return Run{}, state, fmt.Errorf("run %s: %s: %w", t, step, err)
	}
	front, targets := h.objects.FrontIn, h.objects.TargetsIn
	if way == HostOut {
		front, targets = h.objects.FrontOut, h.objects.TargetsOut
	}
	if err := targets.Put(uint32(0), t.program); err != nil {
		return fail("set the tail call", err)
	}
	setting := h.setting(way, o, t.plain)
	if err := h.objects.Setting.Set(&setting); err != nil {
		return fail("write the setting", err)
	}
	start := hostfrontHostProgress{Random: seed | 1<<63, Next: o.begin}
	if err := h.objects.Progress.Set(&start); err != nil {
		return fail("write the state", err)
	}
	var run Run
	// The runner gives up on a signal and is called again: what ran until then is thrown away but counted, and flows that were new
	// are not new any more.
	again := func() {
		if err := h.objects.Progress.Get(&state); err == nil {
			run.Packets += state.Packets
			if h.traffic.New && o.flags == tcpSYN {
				start.Next += uint32(state.Packets)
			}
		}
		_ = h.objects.Progress.Set(&start)
	}
	options := ebpf.RunOptions{
		Data: h.frame(way, o), DataOut: make([]byte, 2*len(setting.Frame)), Repeat: repeat, Reset: again, Context: hostContext{Ifindex: uint32(h.host.ifindex)},
	}
	verdict, err := front.Run(&options)
	if err != nil {
		return fail("test run", err)
	}
	if err := h.objects.Progress.Get(&state); err != nil {
		return fail("read the state", err)
	}
	if state.UndoFailed != 0 || state.Packets != uint64(repeat) {
		return fail("check", fmt.Errorf("%d packets instead of %d, %d of them not undone", state.Packets, repeat, state.UndoFailed))
	}
	run.Packets += state.Packets
	h.sent += uint32(run.Packets)
	run.Verdict, run.Frame = verdict, options.DataOut
	return run, state, nil
}

// frame is the packet that a run begins with.
func (h *HostHarness) frame(way HostWay, o hostOrder) []byte {
	frame := append([]byte(nil), h.frames[way]...)
	frame[len(frame)-h.payload()-tcpLen+13] = o.flags
	return frame
}

// setting describes the packets to the front.
func (h *HostHarness) setting(way HostWay, o hostOrder, plain bool) hostfrontHostSetting {
	frame := h.frame(way, o)
	client, dip := client4.As4(), hostDIP.As4()
	source, vip := hostSource.As4(), HostVIP().As4()
	if plain {
		dip, vip = HostDIP(HostDIPs).As4(), PlainVIP().As4()
	}
	s := hostfrontHostSetting{
		FrameLen: uint32(len(frame)), Flows: h.traffic.Flows, StampShift: o.stampShift, Seq: h.sent,
		Client4: binary.BigEndian.Uint32(client[:]), Dip4: binary.BigEndian.Uint32(dip[:]), Dips: HostDIPs,
		Fixed4: binary.LittleEndian.Uint32(source[:]), Vip4: binary.LittleEndian.Uint32(vip[:]),
	}
	copy(s.Frame[:], frame)
	if o.counted {
		s.Ordered = 1
	}
	if o.standing {
		s.Seq = 0
	}
	if h.traffic.Stamped {
		s.Stamped, s.Time = 1, h.stamped.time
		s.TimeShift = 31
		if !o.standing {
			s.TimeShift, s.Time = stampedShift, s.Time+1+h.sent>>stampedShift
		}
	}
	first := storedSum(frame[ethLen : ethLen+ip4Len])
	if way == HostIn {
		s.PortBe = bits.ReverseBytes16(Port)
		s.OuterSum, s.InnerSum = first, storedSum(frame[ethLen+ip4Len:ethLen+2*ip4Len])
	} else {
		s.PortBe = bits.ReverseBytes16(HostDIPPort)
		s.InnerSum = first
	}
	return s
}

// payload is the number of bytes after the TCP header without options.
func (h *HostHarness) payload() int { return len(h.frames[HostOut]) - ethLen - ip4Len - tcpLen }

// hostFrameIn is a frame in a tunnel. The front fills in addresses, ports, sequence numbers, header checksums and timestamps.
func hostFrameIn(bare []byte) []byte {
	outer := make([]byte, ip4Len)
	outer[0] = 0x45
	binary.BigEndian.PutUint16(outer[2:], uint16(ip4Len+len(bare)-ethLen))
	outer[8], outer[9] = ttl, protoIPIP
	frame := append([]byte(nil), bare[:ethLen]...)
	return append(append(frame, outer...), bare[ethLen:]...)
}
