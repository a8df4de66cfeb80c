package probe

import (
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
)

// machine probes by ICMP whether a machine can be reached. It detects a silent machine within 2 s:
// one interval, the timeout, and one more probe soon after.
var machine = lb.Check{
	Kind: lb.CheckICMP, Interval: time.Second, Fast: 200 * time.Millisecond, Timeout: 400 * time.Millisecond, Jitter: lb.DefaultHealthJitter,
	Rise: health.PathRise, Fall: health.PathFall, Through: lb.ThroughDirect,
}

// Machine returns the target that finds out whether the machine with an address can be reached;
// health.Path evaluates its results.
func Machine(addr netip.Addr) Target { return Of(machine, addr, 0) }

// Reached reports whether a result of Machine shows that the machine can be reached. It is
// meaningless for void results.
func (r *Result) Reached() bool { return r.Good || !r.Silent }
