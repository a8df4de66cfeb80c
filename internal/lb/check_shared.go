package lb

import (
	"net/netip"
	"time"
)

// sharedField is a field that checks of all kinds have. Set in health next to several checks, it
// applies to the checks that do not set it.
type sharedField struct {
	name  string
	given func(*Check) bool
	take  func(to, from *Check)
}

// shared returns the field that of points to; zero means not set.
func shared[T comparable](name string, of func(*Check) *T) sharedField {
	var zero T
	return sharedField{name, func(c *Check) bool { return *of(c) != zero }, func(to, from *Check) { *of(to) = *of(from) }}
}

var sharedFields = []sharedField{
	shared("interval", func(c *Check) *time.Duration { return &c.Interval }),
	shared("timeout", func(c *Check) *time.Duration { return &c.Timeout }),
	shared("fast", func(c *Check) *time.Duration { return &c.Fast }),
	shared("jitter", func(c *Check) *uint8 { return &c.Jitter }),
	shared("rise", func(c *Check) *uint32 { return &c.Rise }),
	shared("fall", func(c *Check) *uint32 { return &c.Fall }),
	shared("initial", func(c *Check) *string { return &c.Initial }),
	shared("port", func(c *Check) *uint16 { return &c.Port }),
	shared("address", func(c *Check) *netip.Addr { return &c.Address }),
	shared("through", func(c *Check) *string { return &c.Through }),
	shared("engine", func(c *Check) *string { return &c.Engine }),
}

// AllowedBeside is the fault of a field in health that all checks set themselves.
const AllowedBeside = "must be left out: every check says its own"

// Unused returns the fields of health that no check inherits, in the order of the documentation.
func Unused(beside *Check, taken map[string]bool) (names []string) {
	for _, f := range sharedFields {
		if f.given(beside) && !taken[f.name] {
			names = append(names, f.name)
		}
	}
	return names
}

// Inherit copies the fields that from has and c lacks, and adds their names to taken.
func (c *Check) Inherit(from *Check, taken map[string]bool) {
	c.inherit(from, taken, func(f sharedField) bool { return f.given(c) })
}

func (c *Check) inherit(from *Check, taken map[string]bool, own func(sharedField) bool) {
	for _, f := range sharedFields {
		if own(f) || f.name == "port" && !c.HasPort() {
			continue
		}
		if f.given(from) {
			taken[f.name] = true
		}
		f.take(c, from)
	}
}
