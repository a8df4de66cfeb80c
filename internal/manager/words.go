package manager

import "slices"

// words are what hosts say of each member, the last word at the end. A member has one host; two say something of it only
// while it moves from one to the other, and then what the one takes back does not take back what the other says.
type words map[healthKey]map[uint32][]word

// word is what one host says of a member.
type word struct {
	host string
	said int
	// text tells why; empty: nothing does.
	text string
}

// say puts a host's word behind the others'; one that repeats itself keeps its place.
func (w words) say(host string, key healthKey, id uint32, said int, text string) {
	of := w[key]
	if of == nil {
		of = map[uint32][]word{}
		w[key] = of
	}
	all := of[id]
	switch at := slices.IndexFunc(all, func(o word) bool { return o.host == host }); {
	case at < 0:
		of[id] = append(all, word{host, said, text})
	case all[at].said != said:
		of[id] = append(slices.Delete(all, at, at+1), word{host, said, text})
	default:
		all[at].text = text
	}
}

// takeBack drops what a host says of a member, and tells whether it said anything.
func (w words) takeBack(host string, key healthKey, id uint32) bool {
	of := w[key]
	all := of[id]
	at := slices.IndexFunc(all, func(o word) bool { return o.host == host })
	if at < 0 {
		return false
	}
	if all = slices.Delete(all, at, at+1); len(all) > 0 {
		of[id] = all
		return true
	}
	if delete(of, id); len(of) == 0 {
		delete(w, key)
	}
	return true
}

// last is the last word on a member.
func (w words) last(key healthKey, id uint32) word {
	if all := w[key][id]; len(all) > 0 {
		return all[len(all)-1]
	}
	return word{said: saidUnknown}
}
