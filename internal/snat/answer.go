package snat

import "time"

// Kind is what an answer says.
type Kind uint8

const (
	// Granted: these ranges, beside those that the DIP has, may be used from now on.
	Granted Kind = iota + 1
	// All: these are all ranges that the DIP has.
	All
	// Taken: these ranges are no longer the DIP's: it gave them back, or is no longer one of the VIP's.
	Taken
	// Leave: no new connection may take a port of these ranges; when the last one is over they are to be given back.
	Leave
	// Refused: there is nothing to grant at present.
	Refused
	// Shrink: the DIP may keep Keep of its ranges, those that were used last. No new connection may take a port of the others; they are to be
	// given back as soon as they are unused.
	Shrink
	// Reclaim: ranges that are unused now are to be given back at once, though not all: others need them.
	Reclaim
)

// Reason is why an ask was refused.
type Reason uint8

const (
	// ReasonExhausted: the VIP has no free range.
	ReasonExhausted Reason = iota + 1
	// ReasonDIPLimit: the DIP has as many as it may have.
	ReasonDIPLimit
	// ReasonTenantLimit: the tenant has as many as it may have.
	ReasonTenantLimit
)

// reasons are their names, as events and metrics say them.
var reasons = [...]string{"", "exhausted", "dip_limit", "tenant_limit"}

// String is the reason as events and metrics say it.
func (r Reason) String() string { return reasons[r] }

// ParseReason reads what String wrote; what it does not know counts as exhausted.
func ParseReason(s string) Reason {
	for i, name := range reasons {
		if name == s {
			return Reason(i)
		}
	}
	return ReasonExhausted
}

// Answer is what the desk says to the host of a DIP.
type Answer struct {
	Holder Holder
	Kind   Kind
	Ranges []Range
	// Keep is of Shrink: how many ranges the DIP may keep.
	Keep int
	// Revision orders grants and what was taken: of Granted and All that of the commit that muxes acknowledged, of Taken that of
	// the commit that took.
	Revision int64
	Reason   Reason
	// Asked is when the ask came that Granted answers, Served when its turn came, and Stored when the batch was, by the desk's
	// clock; zero otherwise.
	Asked, Served, Stored time.Time
}
