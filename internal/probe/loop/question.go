package loop

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unique"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// kind is the protocol of a probe.
type kind uint8

const (
	kindTCP kind = iota
	kindHTTP
	kindUDP
	kindDNS
	kindICMP
)

// question is a check prepared for probing, once for all targets with it.
type question struct {
	check   unique.Handle[lb.Check]
	kind    kind
	targets int // number of targets with it; guarded by Asker.mu
	timeout time.Duration
	// again is the time after which an additional connection is tried; 0: none is.
	again time.Duration
	// before and after are the HTTP request, around the Host header; before is also the payload of
	// TCP, UDP and DNS.
	before, after string
	status        [16]uint64 // one bit for each good status
	expect        []byte
	dns           dnsQuestion
}

// newQuestion returns the question of a check, or an error if this package cannot probe it.
func newQuestion(c *lb.Check) (*question, error) {
	q := &question{check: unique.Make(*c), timeout: c.Timeout, before: c.Sent(), expect: []byte(c.Expected())}
	var err error
	switch {
	case c.Through == lb.ThroughTunnel:
		return nil, fmt.Errorf("through: %q: needs the packet engine", c.Through)
	case c.Kind == lb.CheckTCP && !c.TLS:
		q.kind = kindTCP
	case c.Kind == lb.CheckHTTP && !c.TLS && c.Version == lb.HTTP1 && c.Body == "":
		q.kind = kindHTTP
		for code := range 1000 {
			if c.Status.Has(code) {
				q.status[code/64] |= 1 << (code % 64)
			}
		}
		q.before, q.after, err = probe.Request(c)
	case c.Kind == lb.CheckUDP:
		q.kind = kindUDP
	case c.Kind == lb.CheckDNS:
		q.kind = kindDNS
		var message []byte
		q.dns, message, err = newDNSQuestion(c)
		q.before = string(message)
	case c.Kind == lb.CheckICMP:
		q.kind = kindICMP
	default:
		return nil, fmt.Errorf("kind: %q, as the check has it: %w", c.Kind, errors.ErrUnsupported)
	}
	if err != nil {
		return nil, err
	}
	if q.kind == kindTCP || q.kind == kindHTTP {
		q.again = againAfter(q.timeout)
	}
	return q, nil
}

// hasStatus reports whether a status below 1000 is good.
func (q *question) hasStatus(code int) bool { return q.status[code/64]&(1<<(code%64)) != 0 }

// target is a target to probe. The zero value is none.
type target struct {
	address  netip.AddrPort
	question *question
}

func newTarget(a netip.AddrPort, q *question) target {
	return target{netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), q}
}
