package metrics

import (
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// keyFamilies hold the keys of the leading manager; other managers show none.
var keyFamilies = []*Family{
	fam(Gauge, "shunt_keys", "10; of the leading manager", "Scopes with keys that are needed, by purpose (cookie: VIPs, cid: services with quic) and phase of rotation: spread, return, switch, rest, steady.", "purpose", "phase"),
	fam(Gauge, "shunt_keys_waiting_seconds", "2; of the leading manager", "For how long the phase has lasted that has waited longest for nodes; 0: none waits. shunt get keys names the nodes.", "purpose"),
	fam(Gauge, "shunt_keys_age_seconds", "2; of the leading manager", "Age of the oldest key that is in use.", "purpose"),
}

// keys adds the series of keys as of a time.
func (s sink) keys(counts []*apiv1.KeyCount, now time.Time) {
	waiting, age := map[string]float64{}, map[string]float64{}
	for _, c := range counts {
		p := c.GetPurpose()
		s.put("shunt_keys", float64(c.GetSets()), p, c.GetPhase())
		waiting[p], age[p] = max(waiting[p], 0), max(age[p], 0)
		if c.GetSets() == 0 {
			continue
		}
		if c.GetPhase() != "rest" && c.GetPhase() != "steady" {
			waiting[p] = max(waiting[p], now.Sub(c.GetSince().AsTime()).Seconds())
		}
		age[p] = max(age[p], now.Sub(c.GetMade().AsTime()).Seconds())
	}
	for p := range waiting {
		s.put("shunt_keys_waiting_seconds", waiting[p], p)
		s.put("shunt_keys_age_seconds", age[p], p)
	}
}
