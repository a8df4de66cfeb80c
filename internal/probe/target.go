// Package probe is the probing engine: it asks servers whether they serve, one goroutine per target.
package probe

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Kind is how a target is asked.
type Kind string

// TCP expects a connection to be accepted; HTTP expects a status from 200 to 399 to a GET.
const (
	TCP  Kind = "tcp"
	HTTP Kind = "http"
)

// Target is one thing to probe, and its own key: equal targets are probed once, however many endpoints want them.
type Target struct {
	Address netip.AddrPort
	Kind    Kind
	// Path and Host are the request's; Host defaults to the address. HTTP only.
	Path, Host string
	Interval   time.Duration
	// Timeout bounds the whole probe.
	Timeout time.Duration
}

// Result is what one probe found.
type Result struct {
	Target Target
	Good   bool
	// Void: this machine could not ask, which says nothing about the server.
	Void bool
	// Words says it to people: "status 503".
	Words string
}

// Of is what a check of a backend probes.
func Of(check lb.Health, dip netip.Addr, port uint16) Target {
	t := Target{
		Address: netip.AddrPortFrom(dip, cmp.Or(check.Port, port)), Kind: Kind(check.Kind),
		Interval: check.Interval, Timeout: check.Timeout,
	}
	if t.Kind == HTTP {
		t.Path, t.Host = check.Path, check.Host
	}
	return t
}

func (t Target) validate() error {
	switch {
	case t.Kind != TCP && t.Kind != HTTP:
		return fmt.Errorf("kind: %q: must be tcp or http", t.Kind)
	case !t.Address.IsValid() || t.Address.Port() == 0:
		return fmt.Errorf("address: %v: must be an address with a port", t.Address)
	case t.Interval <= 0:
		return fmt.Errorf("interval: %v: must be above 0", t.Interval)
	case t.Timeout <= 0:
		return fmt.Errorf("timeout: %v: must be above 0", t.Timeout)
	}
	return nil
}
