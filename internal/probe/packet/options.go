// Package packet asks servers by packets instead of sockets: first SYNs leave as bursts (dataplane.Burst) where several wait and the
// device takes them, all others by a packet socket, and the mux's XDP program is the client that answers for them (bpf/mux/probe.h), on
// hosts a tcx program (bpf/hostprobe.bpf.c). It knows TCP and plain HTTP, directly and through a mux's tunnel.
//
// What a good answer proves: of TCP, that the server's kernel completes handshakes on the port, not that a process accepts them; of
// HTTP, that a process answers with the status. Connections are ended by RST.
//
// What it takes to forge an answer without seeing the probes: besides the addresses, the sequence number (20 bits of a number under a
// keyed permutation and 11 random ones of the round) and the port (10 bits) have to be right, all at once, while the round lasts: one packet in
// 2^41 is. Probes of one server say nothing of the numbers of others.
package packet

import (
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/probe"
)

// Options are what an Asker needs from outside.
type Options struct {
	// Tables are the program's (dataplane.Mux.Probes); they have to be there until the asker is closed.
	Tables dataplane.ProbeTables
	// Sender puts frames on the wire (NewSender). The asker closes it.
	Sender Sender
	// Want is told the destinations that ways are needed to; the answer is HopsChanged (netdev.NextHops does both). The list is
	// the receiver's.
	Want func([]netip.Addr)
	// Report gets the answers, in batches that are its own until it returns.
	Report func([]probe.Answer)
	// Say is told, once, why every probe costs more than it might here; nil: nobody is.
	Say func(error)
	// Devices are the interfaces that the program takes answers on; nil: all.
	Devices []int
	// Local is an address of this machine to which servers answer that are tunnelled to over the other family; nil: there is none.
	Local func(is4 bool) netip.Addr
	// Random is uniform over 64 bits, not to be guessed, and used by one goroutine; nil: the process's own.
	Random func() uint64
	// Now is CLOCK_MONOTONIC in nanoseconds, as results have it; nil: that.
	Now func() int64
	// Window is how many probes are under way at most that were sent within the last milliseconds: what a receive ring must have
	// room for. 0: DefaultWindow.
	Window int
}

// DefaultWindow is half of the smallest receive rings that are usual, of 256 frames.
const DefaultWindow = 128

// Times of the asker.
const (
	// tick is how often answers are looked for.
	tick = 2 * time.Millisecond
	// young is how long a probe counts in the window, and is looked at in every tick.
	young = 2*tick + tick/2
	// pause is how long the asker waits when the window is full.
	pause = 30 * time.Microsecond
)

// Frame is what a Sender sends.
type Frame struct {
	// Ifindex is the interface that it leaves by.
	Ifindex int32
	Data    []byte
}

// Sender puts frames on the wire.
type Sender interface {
	// Send sends frames in order and tells how many went; the error is about the one behind them. ErrBusy: later it may go.
	Send([]Frame) (int, error)
	// Close ends it.
	Close() error
}
