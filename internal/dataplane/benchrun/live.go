package benchrun

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Live measures programs with frames that travel through devices: a generator's, into the device of the program under
// test, out of another into the sink's. Each step is called in the namespace of the device that it is about.
type Live struct {
	floor       floorObjects
	under, sink link.Link
}

// OpenLive loads floor and sink.
func OpenLive() (*Live, error) {
	l := &Live{}
	if err := load(loadFloor, &l.floor, MuxFrags); err != nil {
		return nil, fmt.Errorf("load floor programs: %w", err)
	}
	return l, nil
}

// Close takes the programs off their devices.
func (l *Live) Close() error {
	var errs []error
	for _, attached := range []link.Link{l.under, l.sink} {
		if attached != nil {
			errs = append(errs, attached.Close())
		}
	}
	return errors.Join(append(errs, l.floor.Close())...)
}

// Floor is the target that only encapsulates and redirects. Traffic is IPv4.
func (l *Live) Floor() Target { return Target{name: "floor", program: l.floor.FloorLive4} }

// AttachUnder puts the floor where programs are measured: it takes frames from device `in` and sends them by `out`.
func (l *Live) AttachUnder(in, out int) (err error) {
	if err := l.floor.OutIfindex.Set(uint32(out)); err != nil {
		return fmt.Errorf("set the floor's device: %w", err)
	}
	l.under, err = attachLive(l.floor.FloorLive4, in)
	return err
}

// AttachSink puts the sink onto its device.
func (l *Live) AttachSink(ifindex int) (err error) {
	l.sink, err = attachLive(l.floor.Sink, ifindex)
	return err
}

func attachLive(p *ebpf.Program, ifindex int) (link.Link, error) {
	at, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: ifindex, Flags: link.XDPDriverMode})
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", p, err)
	}
	return at, nil
}

// Use puts a target where programs are measured and lets the sink count from 0.
func (l *Live) Use(t Target) error {
	if err := l.under.Update(t.program); err != nil {
		return fmt.Errorf("attach %s: %w", t, err)
	}
	if err := l.floor.Sinks.Set(new([sinkCPUs]floorSinkState)); err != nil {
		return fmt.Errorf("clear the sink: %w", err)
	}
	return nil
}

// Constants of bpf/bench/floor.bpf.c.
const (
	sinkCPUs       = 64
	sinkStampShift = 14
)

// Arrivals is what the sink got on one CPU.
type Arrivals struct {
	Packets   uint64
	PerSecond float64 // median over stretches of packets, without those at the beginning
}

// Arrivals reads the sink, by CPU; those that got next to nothing are left out.
func (l *Live) Arrivals() (map[int]Arrivals, error) {
	var sinks [sinkCPUs]floorSinkState
	if err := l.floor.Sinks.Get(&sinks); err != nil {
		return nil, fmt.Errorf("read the sink: %w", err)
	}
	out := map[int]Arrivals{}
	for cpu, s := range sinks {
		stamps := int(s.Packets >> sinkStampShift)
		if stamps < 2 { // the kernel's own frames, for finding neighbours
			continue
		}
		if s.Strangers > s.Packets/1000 {
			return nil, fmt.Errorf("of the frames that arrived, %d are IP in IP and %d are not", s.Packets, s.Strangers)
		}
		if stamps >= len(s.Stamps) {
			return nil, fmt.Errorf("%d packets arrived on CPU %d: want at most %d", s.Packets, cpu, len(s.Stamps)<<sinkStampShift)
		}
		run := Run{}
		for i := 1 + stamps/8; i < stamps; i++ {
			run.Stretches = append(run.Stretches, float64(s.Stamps[i]-s.Stamps[i-1])/(1<<sinkStampShift))
		}
		if len(run.Stretches) == 0 {
			run.Stretches = []float64{float64(s.Stamps[1]-s.Stamps[0]) / (1 << sinkStampShift)}
		}
		out[cpu] = Arrivals{s.Packets, 1e9 / run.Middle()}
	}
	return out, nil
}

// Generator sends live frames.
type Generator struct {
	front   frontObjects
	traffic Traffic
	out     int
}

// OpenGenerator loads a generator of IPv4 traffic that sends by the given device. It serves one CPU at a time.
func OpenGenerator(traffic Traffic, out int) (*Generator, error) {
	g := &Generator{traffic: traffic, out: out}
	if err := load(loadFront, &g.front, MuxFrags); err != nil {
		return nil, fmt.Errorf("load generator: %w", err)
	}
	return g, nil
}

// Close frees the program.
func (g *Generator) Close() error { return g.front.Close() }

// Send sends packets of random flows.
func (g *Generator) Send(packets uint32, seed uint64) error {
	h := Harness{traffic: g.traffic, frame: template(g.traffic.Family)}
	config := h.config(order{flags: tcpACK})
	config.OutIfindex = uint32(g.out)
	if err := g.front.Config.Set(&config); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	if err := g.front.State.Set(&frontFrontState{Random: seed | 1<<63}); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	_, err := g.front.Generate.Run(&ebpf.RunOptions{Data: h.frame, Repeat: packets, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES})
	if err != nil {
		return fmt.Errorf("send live frames: %w", err)
	}
	return nil
}
