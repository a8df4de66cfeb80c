package lb

import (
	"net/netip"
	"time"
)

// SNATTimes holds the times of ports that are leased to servers for outbound connections. A zero
// field means that of DefaultSNATTimes.
type SNATTimes struct {
	// Idle is the time without use after which servers return a range.
	Idle time.Duration
	// Quarantine is how long a returned range rests before it is leased again.
	Quarantine time.Duration
}

// DefaultSNATTimes has the times of Networks that do not set them.
var DefaultSNATTimes = SNATTimes{Idle: 4 * time.Minute, Quarantine: 2 * time.Minute}

// Bounds of SNATTimes. Hosts check every 10 s which ranges are in use. A mux considers its leases
// current for at most 15 s after others may have newer ones; this is half of the minimum
// quarantine, in which no port gets a new holder. The maximum is a third of the time that leaders
// keep resting ranges (snat.RestKept), because their clocks may differ.
const (
	MinSNATIdle       = 30 * time.Second
	MaxSNATIdle       = 24 * time.Hour
	MinSNATQuarantine = 30 * time.Second
	MaxSNATQuarantine = 10 * time.Minute

	allowedSNATIdle       = "must be 30s to 24h"
	allowedSNATQuarantine = "must be 30s to 10m"
)

// snatTime is a field of SNATTimes, its name in the API, and its bounds.
type snatTime struct {
	name        string
	time        *time.Duration
	least, most time.Duration
	allowed     string
}

// fields returns the fields of t in the order in which they are written.
func (t *SNATTimes) fields() [2]snatTime {
	return [...]snatTime{
		{"idle", &t.Idle, MinSNATIdle, MaxSNATIdle, allowedSNATIdle},
		{"quarantine", &t.Quarantine, MinSNATQuarantine, MaxSNATQuarantine, allowedSNATQuarantine},
	}
}

// SNATTimes returns the times of a VIP's ports: those of its Network, with defaults for those not
// set.
func (ns Networks) SNATTimes(vip netip.Addr) SNATTimes {
	out := DefaultSNATTimes
	if n := ns.OfVIP(vip); n != nil {
		out = n.SNAT
		setDefault(&out.Idle, DefaultSNATTimes.Idle)
		setDefault(&out.Quarantine, DefaultSNATTimes.Quarantine)
	}
	return out
}
