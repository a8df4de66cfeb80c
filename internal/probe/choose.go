package probe

import "github.com/shuntlb/shunt/internal/lb"

// Means is a kind of prober.
type Means struct {
	// Name is for people: "packet", "loop".
	Name string
	// Packets: it probes without sockets, and may not reach every target that sockets reach. Other
	// probers reach every target that they accept.
	Packets bool
	// New makes the prober, which passes its answers to answered. New of the Engine calls it once.
	New func(answered func([]Answer)) (Asker, error)
}

// candidates returns the indices of the probers that may probe a check, in the order in which to
// try them: the given order, but packets first if the check's Engine is packet, and without packets
// if it is socket or if packets failed.
func candidates(means []Means, engine string, packetsFailed bool) []int {
	var first, then []int
	for i, m := range means {
		switch {
		case m.Packets && (engine == lb.EngineSocket || packetsFailed):
		case engine == lb.EnginePacket && !m.Packets:
			then = append(then, i)
		default:
			first = append(first, i)
		}
	}
	return append(first, then...)
}
