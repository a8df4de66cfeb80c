package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/snat"
)

const (
	// outboundDevice is the name of the device that packets without a port are redirected to.
	outboundDevice = "shunt-snat%d"
	// outboundPace is how often expired packets are dropped.
	outboundPace = 250 * time.Millisecond
	// outboundAgain is how often creating the device is retried.
	outboundAgain = 10 * time.Second
	// outboundFrame is the largest frame: joined segments are split before they reach the device.
	outboundFrame = 1 << 16
)

// frameDevice is the source of packets for which there is no port.
type frameDevice interface {
	Index() int
	Read([]byte) (int, error)
	Close() error
}

// frameSender sends packets on by the uplink, as if their servers had just sent them.
type frameSender interface {
	Send([]byte) error
	Close() error
}

// outbound wraps the data plane of connections that servers open. It holds the pending packets that
// need a port, and sends them on when ports arrive.
type outbound struct {
	dataplane.HostSNAT
	clock clock.Clock
	log   *slog.Logger
	make  func() (frameDevice, frameSender, error)
	// opens, if not nil, receives the DIPs of servers whose connections leave with a VIP. Set
	// before the first call.
	opens func(dips []netip.Addr)
	wg    sync.WaitGroup

	// mu is taken before the locks of the data plane.
	mu      sync.Mutex
	waiting *waiting
	wanted  bool // there are DIPs with SNAT
	device  frameDevice
	sender  frameSender
	tried   time.Time // when creating the device was tried last
	uplink  int       // index of the device that frames leave by
	expired uint64
}

var _ dataplane.HostSNAT = (*outbound)(nil)

// newOutbound returns an outbound around the data plane, whose frames leave by the device of index
// uplink.
func newOutbound(tables dataplane.HostSNAT, uplink int, c clock.Clock, log *slog.Logger) *outbound {
	o := &outbound{HostSNAT: tables, clock: c, log: log, waiting: newWaiting(dataplane.MaxSNATWaiting), uplink: uplink}
	o.make = func() (frameDevice, frameSender, error) {
		d, err := netdev.OpenTap(outboundDevice)
		if err != nil {
			return nil, nil, err
		}
		s, err := netdev.NewFrameSender(o.uplink)
		if err != nil {
			return nil, nil, errors.Join(err, d.Close())
		}
		return d, s, nil
	}
	return o
}

// uplinkReplaced sets the index of the uplink, which was removed and created again.
func (o *outbound) uplinkReplaced(ifindex int) {
	o.mu.Lock()
	o.uplink = ifindex
	device := o.device
	o.mu.Unlock()
	if device != nil {
		o.lose(device)
	}
	o.mu.Lock()
	o.tried = time.Time{}
	o.openLocked()
	o.mu.Unlock()
}

// SetHolders implements dataplane.HostSNAT. The first DIPs create the device.
func (o *outbound) SetHolders(holders []snat.Holder) error {
	o.mu.Lock()
	o.wanted = len(holders) > 0
	o.openLocked()
	o.mu.Unlock()
	if o.opens != nil {
		dips := make([]netip.Addr, 0, len(holders))
		for _, h := range holders {
			dips = append(dips, h.DIP)
		}
		o.opens(dips)
	}
	return o.HostSNAT.SetHolders(holders)
}

// SetRanges implements dataplane.HostSNAT. It sends on the packets that waited for ports.
func (o *outbound) SetRanges(h snat.Holder, usable, leaving []snat.Range) error {
	if err := o.HostSNAT.SetRanges(h, usable, leaving); err != nil {
		return err
	}
	if len(usable) == 0 {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	send := o.waiting.ports(h.DIP, o.clock.Now())
	o.sendLocked(send)
	if len(send) > 0 {
		o.Dealt(h.DIP, len(send))
	}
	return nil
}

// openLocked creates the device if it is wanted and missing. Without it packets that have no port
// are dropped. mu is held.
func (o *outbound) openLocked() {
	now := o.clock.Now()
	if !o.wanted || o.device != nil || !o.tried.IsZero() && now.Sub(o.tried) < outboundAgain {
		return
	}
	o.tried = now
	device, sender, err := o.make()
	if err != nil {
		o.log.Warn("packets of connections that have no port yet are dropped: there is no device that they could wait at", "error", err)
		return
	}
	o.device, o.sender = device, sender
	o.SetDevice(device.Index())
	o.wg.Go(func() { o.read(device) })
}

// read receives frames until the device is closed.
func (o *outbound) read(d frameDevice) {
	b := make([]byte, outboundFrame)
	for {
		n, err := d.Read(b)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			o.log.Error("read packets that wait for a port", "error", err)
			o.lose(d)
			return
		}
		o.arrive(bytes.Clone(b[:n]))
	}
}

// lose closes a device that can no longer be read, for example because it was removed. Another one
// is created after outboundAgain.
func (o *outbound) lose(d frameDevice) {
	o.mu.Lock()
	if o.device != d {
		o.mu.Unlock()
		return // it is being closed
	}
	sender := o.sender
	o.device, o.sender, o.tried = nil, nil, o.clock.Now()
	o.SetDevice(0)
	o.mu.Unlock()
	if err := errors.Join(d.Close(), sender.Close()); err != nil {
		o.log.Error("take away the device of packets that wait for a port", "error", err)
	}
}

func (o *outbound) arrive(frame []byte) {
	dip, ok := waitingDIP(frame)
	if !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	send, ok := o.waiting.arrive(dip, frame, o.clock.Now())
	o.sendLocked(send)
	dealt := len(send)
	if !ok {
		o.expired++
		dealt++
	}
	if dealt > 0 {
		o.Dealt(dip, dealt)
	}
}

// sendLocked sends frames on. A frame for which the device has no room is lost, like any other
// packet. mu is held.
func (o *outbound) sendLocked(frames [][]byte) {
	for _, f := range frames {
		if o.sender == nil {
			return
		}
		if err := o.sender.Send(f); err != nil {
			o.expired++
			o.log.Debug("a packet that waited for a port is lost", "error", err)
		}
	}
}

// run drops expired packets until ctx ends, then removes the device.
func (o *outbound) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			o.close()
			return
		case <-o.clock.After(outboundPace):
		}
		o.tend()
	}
}

func (o *outbound) tend() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.clock.Now()
	for dip, n := range o.waiting.expire(now) {
		o.expired += uint64(n)
		o.Dealt(dip, n)
	}
	// The device may have lost packets. Correct the count of each DIP from which none arrived for a
	// while, even while those of other DIPs keep arriving.
	o.Settle(func(dip netip.Addr) (int, bool) { return o.waiting.settled(dip, now) })
	o.openLocked()
}

func (o *outbound) close() {
	o.mu.Lock()
	device, sender := o.device, o.sender
	o.wanted, o.device, o.sender = false, nil, nil
	if device != nil {
		o.SetDevice(0)
	}
	o.mu.Unlock()
	if device != nil {
		if err := errors.Join(device.Close(), sender.Close()); err != nil {
			o.log.Error("take away the device of packets that wait for a port", "error", err)
		}
	}
	o.wg.Wait()
}

// lost returns how many packets were dropped because they waited for too long, or there was no room
// for them.
func (o *outbound) lost() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.expired
}

// outboundStatus adds to a status the use of ports for connections that servers open, and the
// counts of packets without one.
func (a *Agent) outboundStatus(s *apiv1.NodeStatus, n dataplane.HostSNATCounts) {
	if a.outbound == nil {
		return
	}
	s.Tables = append(s.Tables,
		&apiv1.TableStatus{Name: "snat_ports", Used: n.Used, Capacity: n.Ports},
		&apiv1.TableStatus{Name: "snat_waiting", Used: n.Waiting, Capacity: n.Servers * uint64(dataplane.MaxSNATWaiting)})
	s.Reasons = append(s.Reasons, &apiv1.ReasonCount{Reason: "out_snat_expired", Packets: a.outbound.lost(), Class: string(dataplane.ClassOf("host", "out_snat_expired"))})
	if a.leases == nil {
		return
	}
	used, fault := a.leases.room()
	s.Tables = append(s.Tables, &apiv1.TableStatus{Name: dataplane.TableSNATServers, Used: uint64(used), Capacity: uint64(dataplane.MaxSNATServers)})
	if n.Short > 0 {
		fault = strings.Join(append(nonEmpty(fault), fmt.Sprintf("table %s is full: %d servers use part of their ports", dataplane.TableSNATRanges, n.Short)), "; ")
	}
	s.Error = strings.Join(append(nonEmpty(s.Error), nonEmpty(fault)...), "; ")
}

// nonEmpty returns a list of one text, or nil if it is empty.
func nonEmpty(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}
