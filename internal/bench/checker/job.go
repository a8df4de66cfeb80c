// Package checker is a process that probes many servers and does nothing else, so that what probing costs is what a pinned CPU
// does: Shunt's engines, and a checker as one writes it in Go. `shunt bench health` drives it, and rivals in other languages, by
// flags and by lines on standard input and output.
package checker

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"time"
)

// Kinds of probes.
const (
	TCP  = "tcp"  // a connection is accepted
	HTTP = "http" // GET / is answered with a status from 200 to 399
)

// Job is what a checker probes: as many IPv4 addresses as there are targets, from the first one on.
type Job struct {
	Engine  string
	Kind    string
	First   netip.Addr
	Port    uint16
	Targets int
	// Interval is how often each target is probed, Timeout bounds each probe.
	Interval, Timeout time.Duration
	// InFlight bounds the connections at a time of checkers that hold one for each probe.
	InFlight int
	// Device is the network device that leads to the targets.
	Device string
	// Pins is a directory below the BPF filesystem for programs that have to be pinned; who starts the checker removes it.
	Pins string
}

// Args are the flags that say the job, which a process in any language understands: each followed by its value.
func (j Job) Args() []string {
	return []string{
		"--engine", j.Engine, "--kind", j.Kind, "--first", j.First.String(), "--port", strconv.Itoa(int(j.Port)),
		"--targets", strconv.Itoa(j.Targets), "--interval-ms", milliseconds(j.Interval), "--timeout-ms", milliseconds(j.Timeout),
		"--in-flight", strconv.Itoa(j.InFlight), "--device", j.Device, "--pins", j.Pins,
	}
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// Target is the address of target number i.
func (j Job) Target(i int) netip.AddrPort {
	b := j.First.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(i))
	return netip.AddrPortFrom(netip.AddrFrom4(b), j.Port)
}
