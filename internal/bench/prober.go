package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/notify"
)

// firstLanePort is the first source port of lanes: below the ephemeral range of a lab's client
// (10000 up).
const firstLanePort = 7000

// lanePorts returns the first count ports.
func lanePorts(count int) []uint16 {
	ports := make([]uint16, count)
	for i := range ports {
		ports[i] = firstLanePort + uint16(i)
	}
	return ports
}

// TCP flags and lengths (RFC 9293).
const (
	tcpSYN       = 0x02
	tcpACK       = 0x10
	tcpHeaderLen = 20
	tcpSYNLen    = tcpHeaderLen + 4 // with the MSS option
	protocolTCP  = 6
	// synSequence is one for all: a repeated SYN is a retransmission with the same reply.
	synSequence   = 0x53687574
	segmentMaxLen = 1500
)

// prober sends SYNs from fixed source ports and receives the SYN-ACKs: the first packet of a
// connection through the balancer and the server's reply. The client's own stack has no such
// connections and resets them.
type prober struct {
	conn   *net.IPConn
	source netip.Addr
	target netip.AddrPort
	ports  []uint16 // of the lanes
	tick   time.Duration
	// hurried is closed to send probes at each tick. Before that, they are sent at each idleTick.
	hurried chan struct{}

	mu    sync.Mutex
	lanes *lanes // guarded by mu

	changed chan struct{} // has a token after a lane's first reply
	failed  error         // guarded by mu; ended the receiver or the sender
	group   sync.WaitGroup
	stop    context.CancelFunc
}

// idleTick is the interval of probes before any reply is expected. It is long, to keep CPU time for
// the measured work.
const idleTick = 10 * time.Millisecond

// startProber probes an IPv4 target from the namespace: one SYN per lane and tick, from hurry to
// close.
func startProber(namespace string, source netip.Addr, target netip.AddrPort, ports []uint16, tick time.Duration) (*prober, error) {
	if !source.Is4() || !target.Addr().Is4() {
		return nil, fmt.Errorf("probe %s from %s: must be IPv4", target, source)
	}
	p := &prober{source: source, target: target, ports: ports, tick: tick, lanes: newLanes(len(ports)), changed: make(chan struct{}, 1), hurried: make(chan struct{})}
	err := netdev.In(namespace, func() (err error) {
		p.conn, err = net.ListenIP("ip4:tcp", &net.IPAddr{IP: source.AsSlice()})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open raw socket in %s: %w", namespace, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	p.group.Go(p.receive)
	p.group.Go(func() { p.send(ctx) })
	return p, nil
}

// hurry sends probes at each tick from now on. It is called once.
func (p *prober) hurry() { close(p.hurried) }

// close ends the probing.
func (p *prober) close() {
	p.stop()
	p.conn.Close()
	p.group.Wait()
}

func (p *prober) send(ctx context.Context) {
	ticker := time.NewTicker(max(p.tick, idleTick))
	defer ticker.Stop()
	hurried := p.hurried
	to := &net.IPAddr{IP: p.target.Addr().AsSlice()}
	for {
		for lane := range p.lanes.gap {
			// A full queue or an unreachable target only loses a probe.
			if _, err := p.conn.WriteToIP(p.syn(lane), to); errors.Is(err, net.ErrClosed) {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-hurried:
			hurried = nil
			ticker.Reset(p.tick)
		case <-ticker.C:
		}
	}
}

// syn builds a lane's segment. It always has the same bytes.
func (p *prober) syn(lane int) []byte {
	s := make([]byte, tcpSYNLen)
	binary.BigEndian.PutUint16(s, p.ports[lane])
	binary.BigEndian.PutUint16(s[2:], p.target.Port())
	binary.BigEndian.PutUint32(s[4:], synSequence)
	s[12], s[13] = tcpSYNLen/4<<4, tcpSYN
	binary.BigEndian.PutUint16(s[14:], 0xffff)
	copy(s[20:], []byte{2, 4, 1460 >> 8, 1460 & 0xff})
	binary.BigEndian.PutUint16(s[16:], tcpChecksum(p.source, p.target.Addr(), s))
	return s
}

func (p *prober) receive() {
	segment := make([]byte, segmentMaxLen)
	for {
		n, from, err := p.conn.ReadFromIP(segment)
		now := time.Now()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				continue
			}
			p.mu.Lock()
			p.failed = err
			p.mu.Unlock()
			return
		}
		address, _ := netip.AddrFromSlice(from.IP)
		lane, ok := p.laneOf(segment[:n])
		if !ok || address.Unmap() != p.target.Addr() {
			continue
		}
		p.book(lane, now)
	}
}

// book records a reply and wakes the waiter for a lane's first one.
func (p *prober) book(lane int, now time.Time) {
	p.mu.Lock()
	first := p.lanes.first[lane].IsZero()
	p.lanes.answer(lane, now)
	p.mu.Unlock()
	if first {
		notify.Send(p.changed)
	}
}

// laneOf returns the lane of a SYN-ACK from the target.
func (p *prober) laneOf(segment []byte) (int, bool) {
	if len(segment) < tcpHeaderLen || segment[13]&(tcpSYN|tcpACK) != tcpSYN|tcpACK {
		return 0, false
	}
	source, destination := binary.BigEndian.Uint16(segment), binary.BigEndian.Uint16(segment[2:])
	lane := slices.Index(p.ports, destination)
	return lane, source == p.target.Port() && lane >= 0
}

// waitAll waits until every lane got a reply and returns the time of the last first reply.
func (p *prober) waitAll(ctx context.Context) (time.Time, error) {
	for {
		p.mu.Lock()
		at, ok := p.lanes.all()
		err := p.failed
		p.mu.Unlock()
		if ok || err != nil {
			return at, err
		}
		select {
		case <-ctx.Done():
			return at, fmt.Errorf("wait for answers of %s: %w", p.target, ctx.Err())
		case <-p.changed:
		}
	}
}

// answered reports whether any lane ever got a reply.
func (p *prober) answered() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lanes.answers > 0
}

// longest returns the longest time since `since` that any lane was without a reply.
func (p *prober) longest(since time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lanes.longest(since, time.Now())
}

// tcpChecksum computes the checksum of a segment whose checksum field is zero (RFC 9293 section
// 3.1).
func tcpChecksum(source, destination netip.Addr, segment []byte) uint16 {
	s, d := source.As4(), destination.As4()
	pseudo := append(append(s[:], d[:]...), 0, protocolTCP, byte(len(segment)>>8), byte(len(segment)))
	var sum uint32
	for _, b := range [][]byte{pseudo, segment} {
		for i := 0; i+1 < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		if len(b)%2 == 1 {
			sum += uint32(b[len(b)-1]) << 8
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
