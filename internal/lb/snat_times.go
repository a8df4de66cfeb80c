package lb

import (
	"net/netip"
	"time"
)

// SNATTimes are the times of ports that are leased to servers for outbound connections. A zero field is that of DefaultSNATTimes.
type SNATTimes struct {
	// Idle is after how long without use servers give a range back.
	Idle time.Duration
	// Quarantine is how long a range rests that was given back, before it is leased again.
	Quarantine time.Duration
}

// DefaultSNATTimes are those of Networks that do not say any.
var DefaultSNATTimes = SNATTimes{Idle: 4 * time.Minute, Quarantine: 2 * time.Minute}

// Bounds of SNATTimes. Hosts look every 10 s which ranges are used. A mux takes its leases for the newest for at most 15 s after others may have
// newer ones, so that for half of the least quarantine no port has another holder than any mux knows. The longest is a third of what leaders
// remember of ranges that rest (snat.RestKept), whose clocks may differ.
const (
	MinSNATIdle       = 30 * time.Second
	MaxSNATIdle       = 24 * time.Hour
	MinSNATQuarantine = 30 * time.Second
	MaxSNATQuarantine = 10 * time.Minute

	allowedSNATIdle       = "must be 30s to 24h"
	allowedSNATQuarantine = "must be 30s to 10m"
)

// snatTime is a field of SNATTimes, its name in the API, and what it may be.
type snatTime struct {
	name        string
	time        *time.Duration
	least, most time.Duration
	allowed     string
}

// fields are those of t, in the order in which they are written.
func (t *SNATTimes) fields() [2]snatTime {
	return [...]snatTime{
		{"idle", &t.Idle, MinSNATIdle, MaxSNATIdle, allowedSNATIdle},
		{"quarantine", &t.Quarantine, MinSNATQuarantine, MaxSNATQuarantine, allowedSNATQuarantine},
	}
}

// SNATTimes returns the times of a VIP's ports: those of its Network, and the defaults where it says none.
func (ns Networks) SNATTimes(vip netip.Addr) SNATTimes {
	out := DefaultSNATTimes
	if n := ns.OfVIP(vip); n != nil {
		out = n.SNAT
		setDefault(&out.Idle, DefaultSNATTimes.Idle)
		setDefault(&out.Quarantine, DefaultSNATTimes.Quarantine)
	}
	return out
}
