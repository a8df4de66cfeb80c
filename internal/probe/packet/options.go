// Package packet probes servers by packets instead of sockets. First SYNs are sent as bursts
// (dataplane.Burst) if several wait and the device takes bursts, all other frames by a packet
// socket. The receiving client is the mux's XDP program (bpf/mux/probe.h), on hosts a tcx program
// (bpf/hostprobe.bpf.c). It supports TCP and plain HTTP, directly and through a mux's tunnel.
//
// A good answer proves for TCP that the server's kernel completes handshakes on the port, not that
// a process accepts them; for HTTP, that a process answers with the status. Connections are ended
// by RST.
//
// To forge an answer without seeing the probes, an attacker has to guess, in addition to the
// addresses, the sequence number (20 bits of a number under a keyed permutation and 11 random ones
// of the round) and the port (10 bits), all in one packet while the round lasts: one packet in 2^41
// succeeds. Probes of one server reveal nothing about the numbers of others.
package packet

import (
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/probe"
)

// Options are the settings and callbacks of an Asker.
type Options struct {
	// Tables are the program's (dataplane.Mux.Probes). They must exist until the prober is closed.
	Tables dataplane.ProbeTables
	// Sender puts frames on the wire (NewSender). The prober closes it.
	Sender Sender
	// Want receives the destinations whose ways are needed. The response is a call of HopsChanged
	// (netdev.NextHops does both). The receiver owns the list.
	Want func([]netip.Addr)
	// Report receives the answers in batches. It owns a batch until it returns.
	Report func([]probe.Answer)
	// Say receives, once, the reason why probes cost more than necessary on this machine; may be
	// nil.
	Say func(error)
	// Devices are the interfaces on which the program receives answers; nil: all.
	Devices []int
	// Local returns an address of this machine to which servers reply when the tunnel to them has
	// the other family; nil: there is none.
	Local func(is4 bool) netip.Addr
	// Random is uniform over 64 bits, unpredictable, and used by one goroutine; nil: the process's
	// own.
	Random func() uint64
	// Now returns CLOCK_MONOTONIC in nanoseconds, the clock of the results' times; nil: the
	// system's.
	Now func() int64
	// Window bounds the running probes of which a SYN was sent within the last milliseconds.
	// Receive rings must have room for so many answers. 0: DefaultWindow.
	Window int
}

// DefaultWindow is half of the smallest common receive ring, which has 256 frames.
const DefaultWindow = 128

// Times of the prober.
const (
	// tick is the interval of looking for answers.
	tick = 2 * time.Millisecond
	// young is how long after a SYN a probe counts in the window and is checked in every tick.
	young = 2*tick + tick/2
	// pause is how long the prober waits when the window is full.
	pause = 30 * time.Microsecond
)

// Frame is a frame for a Sender.
type Frame struct {
	// Ifindex is the interface to send it on.
	Ifindex int32
	Data    []byte
}

// Sender puts frames on the wire.
type Sender interface {
	// Send sends frames in order and returns how many were sent; the error is about the next one.
	// ErrBusy: a retry may succeed.
	Send([]Frame) (int, error)
	// Close closes the sender.
	Close() error
}
