// Package probe is the probing engine: it probes servers to find out whether they serve.
package probe

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"
	"unique"

	"github.com/shuntlb/shunt/internal/lb"
)

// Target is one thing to probe, and its own key: equal targets are probed once, however many
// endpoints want them.
type Target struct {
	// Check is the kind and schedule of the probe. Rise, Fall and Initial are zero, except Rise and
	// Fall of a check with Fast, because there they set for how long results count as changing.
	Check   unique.Handle[lb.Check]
	Address netip.AddrPort
	// Tunnel is the tunnel that the probe is sent through; zero: it is sent directly to Address.
	Tunnel unique.Handle[Tunnel]
}

// Tunnel is the path of a probe that travels like the packets of clients: to the VIP, in a tunnel
// to the member's host.
type Tunnel struct {
	VNI uint32
	VIP netip.AddrPort
	// Outer is the tunnel's destination, Encap its form (lb.EncapIPIP or lb.EncapGUE), Member the
	// member id in the GUE header.
	Outer  netip.Addr
	Encap  string
	Member uint16
}

// Direct returns the same check without the tunnel, for a socket, to the backend's address.
func (t Target) Direct() Target {
	c := t.Check.Value()
	c.Through, c.Engine = lb.ThroughDirect, ""
	return Target{Check: unique.Make(c), Address: t.Address}
}

// tunnelled reports whether the target is probed through a tunnel.
func (t Target) tunnelled() bool { return t.Tunnel != unique.Handle[Tunnel]{} }

// Result is the result of one probe.
type Result struct {
	Target Target
	Good   bool
	// Void: this machine could not probe. The result carries no information about the server.
	Void bool
	// Unaskable, with Void: no prober on this machine supports this target, and it is not probed.
	Unaskable bool
	// Silent: no packet came back from the server or its machine, or a router reported them
	// unreachable. A refusal or a bad answer is not silence, because it shows that the path works
	// in both directions.
	Silent bool
	// Words is the reason as text: "status 503".
	Words string
	// At is when the probe began, Took the time until its verdict.
	At   time.Time
	Took time.Duration
}

// Of returns the target that a check of a backend probes directly.
func Of(check lb.Check, dip netip.Addr, port uint16) Target {
	address := addressOf(&check, dip, port)
	if check.Fast == 0 {
		check.Rise, check.Fall = 0, 0
	}
	check.Initial, check.Port, check.Address = "", 0, netip.Addr{}
	return Target{Check: unique.Make(check), Address: address}
}

// addressOf returns the address that a check of a backend probes.
func addressOf(check *lb.Check, dip netip.Addr, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(cmp.Or(check.Address, dip), cmp.Or(check.Port, port))
}

// Timeout returns the bound of the whole probe.
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
