// Package checker is a process that only probes many servers, so that the cost of probing is the
// work of a pinned CPU. It holds Shunt's engines and a typical checker in Go. `shunt bench health`
// drives it, and rivals in other languages, by flags and by lines on standard input and output.
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
	HTTP = "http" // GET / returns a status from 200 to 399
)

// Job describes the targets and probes of a checker: Targets IPv4 addresses from First on.
type Job struct {
	Engine  string
	Kind    string
	First   netip.Addr
	Port    uint16
	Targets int
	// Interval is the probe interval of each target. Timeout bounds each probe.
	Interval, Timeout time.Duration
	// InFlight bounds the concurrent connections of checkers that hold one for each probe.
	InFlight int
	// Device is the network device that leads to the targets.
	Device string
	// Pins is a directory below the BPF filesystem for programs that have to be pinned. The parent
	// process removes it.
	Pins string
}

// Args returns the job as flags that a process in any language can parse: each followed by its
// value.
func (j Job) Args() []string {
	return []string{
		"--engine", j.Engine, "--kind", j.Kind, "--first", j.First.String(), "--port", strconv.Itoa(int(j.Port)),
		"--targets", strconv.Itoa(j.Targets), "--interval-ms", milliseconds(j.Interval), "--timeout-ms", milliseconds(j.Timeout),
		"--in-flight", strconv.Itoa(j.InFlight), "--device", j.Device, "--pins", j.Pins,
	}
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// Target returns the address of target number i.
func (j Job) Target(i int) netip.AddrPort {
	b := j.First.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(i))
	return netip.AddrPortFrom(netip.AddrFrom4(b), j.Port)
}
