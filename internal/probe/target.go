// Package probe is the probing engine: it asks servers whether they serve.
package probe

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"
	"unique"

	"github.com/shuntlb/shunt/internal/lb"
)

// Target is one thing to probe, and its own key: equal targets are probed once, however many endpoints want them.
type Target struct {
	// Check is what is asked and how often. Rise, Fall and Initial are zero, but for Rise and Fall of one with Fast, which
	// say for how long results change.
	Check   unique.Handle[lb.Check]
	Address netip.AddrPort
	// Tunnel is what the probe is sent through; zero: it goes straight to Address.
	Tunnel unique.Handle[Tunnel]
}

// Tunnel is the way of a probe that goes as the packets of clients do: to the VIP, in a tunnel to the member's host.
type Tunnel struct {
	VNI uint32
	VIP netip.AddrPort
	// Outer is the tunnel's destination, Encap its form (lb.EncapIPIP or lb.EncapGUE), Member what GUE names.
	Outer  netip.Addr
	Encap  string
	Member uint16
}

// Direct is the same check without the tunnel, for a socket: at the backend's address.
func (t Target) Direct() Target {
	c := t.Check.Value()
	c.Through, c.Engine = lb.ThroughDirect, ""
	return Target{Check: unique.Make(c), Address: t.Address}
}

// tunnelled tells whether it is probed through a tunnel.
func (t Target) tunnelled() bool { return t.Tunnel != unique.Handle[Tunnel]{} }

// Result is what one probe found.
type Result struct {
	Target Target
	Good   bool
	// Void: this machine could not ask, which says nothing about the server.
	Void bool
	// Unaskable, with Void: nothing on this machine can ask this target, and it is not asked.
	Unaskable bool
	// Silent: nothing came back from the server or its machine, or a router said that they cannot be reached. A refusal or a bad
	// answer is not silence: it shows that the way there and back works.
	Silent bool
	// Words says it to people: "status 503".
	Words string
	// At is when the probe began, Took how long it was until its verdict.
	At   time.Time
	Took time.Duration
}

// Of is what a check of a backend probes directly.
func Of(check lb.Check, dip netip.Addr, port uint16) Target {
	address := addressOf(&check, dip, port)
	if check.Fast == 0 {
		check.Rise, check.Fall = 0, 0
	}
	check.Initial, check.Port, check.Address = "", 0, netip.Addr{}
	return Target{Check: unique.Make(check), Address: address}
}

// addressOf is where a check asks a backend.
func addressOf(check *lb.Check, dip netip.Addr, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(cmp.Or(check.Address, dip), cmp.Or(check.Port, port))
}

// Timeout bounds the whole probe.
func (t Target) Timeout() time.Duration { return t.Check.Value().Timeout }

func (t Target) validate() error {
	if t.Check == (unique.Handle[lb.Check]{}) {
		return fmt.Errorf("check: must be one")
	}
	c, port := t.Check.Value(), t.Address.Port()
	if t.Tunnel != (unique.Handle[Tunnel]{}) {
		port = t.Tunnel.Value().VIP.Port()
	}
	switch {
	case !t.Address.IsValid() || port == 0 && c.Kind != lb.CheckICMP && c.Kind != lb.CheckExternal:
		return fmt.Errorf("address: %v: must be an address with a port", t.Address)
	case c.Interval <= 0:
		return fmt.Errorf("interval: %v: must be above 0", c.Interval)
	case c.Timeout <= 0:
		return fmt.Errorf("timeout: %v: must be above 0", c.Timeout)
	}
	return nil
}
