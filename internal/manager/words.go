package manager

import "slices"

// words holds the hosts' reports on each member, the newest at the end. A member has one host. Two
// hosts report on it only while it moves from one to the other, and then a withdrawal by one does
// not affect the other's report.
type words map[healthKey]map[uint32][]word

// word is one host's report on a member.
type word struct {
	host string
	said int
	// text is the reason; empty if there is none.
	text string
}

// say stores a host's report as the newest. A repeated report keeps its position.
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

// takeBack deletes a host's report on a member, and reports whether there was one.
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

// last returns the newest report on a member.
func (w words) last(key healthKey, id uint32) word {
	if all := w[key][id]; len(all) > 0 {
		return all[len(all)-1]
	}
	return word{said: saidUnknown}
}
