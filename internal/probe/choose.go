package probe

import "github.com/shuntlb/shunt/internal/lb"

// Means is a way to ask.
type Means struct {
	// Name is for people: "packet", "loop".
	Name string
	// Packets: it asks without sockets, and may not reach what sockets do; else it can be trusted with what it takes.
	Packets bool
	// New makes the asker, which hands its answers to answered. It is called once, by New of the Engine.
	New func(answered func([]Answer)) (Asker, error)
}

// candidates are the indices of those means that may ask a check, in the order in which they are to be tried: as given, but packets
// first when the check's Engine wants them, and sockets alone when it wants these, or when packets failed.
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
