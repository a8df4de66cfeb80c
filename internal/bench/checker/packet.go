package checker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
	"github.com/shuntlb/shunt/internal/probe/packet"
)

// packets holds the requirements of the packet prober on this machine: the mux's program on the
// job's device, with its normal tables, and the next hops to the targets.
type packets struct {
	job    Job
	device netdev.Interface
	mux    *dataplane.Mux
	cancel context.CancelFunc
	ways   sync.WaitGroup
	// found is closed when all next hops are known, or when following them failed with lost.
	found chan struct{}
	lost  error
}

// openPackets attaches the mux's program to the job's device.
func openPackets(job Job) (*packets, error) {
	device, err := netdev.FindInterface(job.Device)
	if err != nil {
		return nil, err
	}
	m, err := dataplane.OpenMux(dataplane.MuxOptions{
		Ifindex: device.Index, BPFFS: job.Pins, Limits: dataplane.MuxLimits{Probes: uint32(max(job.Targets, 1)+63) &^ 63}, DeviceMAC: func(int) ([6]byte, error) { return device.MAC, nil },
	})
	if err != nil {
		return nil, err
	}
	return &packets{job: job, device: device, mux: m, cancel: func() {}, found: make(chan struct{})}, nil
}

// asker makes the prober, once, and follows the next hops to its targets.
func (p *packets) asker(answered func([]probe.Answer)) (probe.Asker, error) {
	tables, err := p.mux.Probes()
	if err != nil {
		return nil, err
	}
	return p.askerOn(tables, answered)
}

// askerOn is asker with the given probe tables.
func (p *packets) askerOn(tables dataplane.ProbeTables, answered func([]probe.Answer)) (probe.Asker, error) {
	sender, err := packet.NewSender()
	if err != nil {
		return nil, err
	}
	hops := netdev.NewNextHops()
	a, err := packet.New(packet.Options{
		Tables: tables, Sender: sender, Want: hops.Want, Devices: []int{p.device.Index}, Report: answered,
	})
	if err != nil {
		return nil, errors.Join(err, sender.Close())
	}
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	var once sync.Once
	p.ways.Go(func() {
		err := hops.Follow(ctx, func(ways netdev.Ways) {
			a.HopsChanged(ways)
			if resolved(ways) >= p.job.Targets {
				once.Do(func() { close(p.found) })
			}
		})
		once.Do(func() { p.lost = err; close(p.found) })
	})
	return a, nil
}

// resolved counts the next hops whose neighbors are known.
func resolved(ways netdev.Ways) (n int) {
	for _, which := range ways.Each() {
		if ways.Hops()[which].Resolved {
			n++
		}
	}
	return n
}

// wait waits until the next hops to all targets are known.
func (p *packets) wait(ctx context.Context) error {
	select {
	case <-p.found:
		return p.lost
	case <-ctx.Done():
		return fmt.Errorf("wait for the ways to targets: %w", context.Cause(ctx))
	}
}

// tables returns the memory of the probe tables.
func (p *packets) tables() (sum uint64, err error) {
	all, err := p.mux.Footprint()
	for name, bytes := range all {
		if strings.HasPrefix(name, "probe") {
			sum += bytes
		}
	}
	return sum, err
}

// close releases everything. The prober must be closed before.
func (p *packets) close() error {
	p.cancel()
	p.ways.Wait()
	return p.mux.Close()
}
