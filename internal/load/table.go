package load

import (
	"container/list"
	"time"
)

// Table has the newest load of each member, in the order in which they came, so that what came since a moment is found without a look at
// the rest. It is not safe for concurrent use.
type Table struct {
	entries map[Key]*list.Element // of row
	order   *list.List            // by number, and so by time
	count   uint64
}

// row is a load in a table.
type row struct {
	Member
	origin string
	number uint64
	at     time.Time
}

// NewTable makes an empty table.
func NewTable() *Table { return &Table{entries: map[Key]*list.Element{}, order: list.New()} }

// Put takes in loads at a time not before that of the last Put. origin says where they came from, for Since.
func (t *Table) Put(members []Member, origin string, now time.Time) {
	for _, m := range members {
		t.count++
		r := row{m, origin, t.count, now}
		if e := t.entries[m.Key]; e != nil {
			e.Value = r
			t.order.MoveToBack(e)
			continue
		}
		t.entries[m.Key] = t.order.PushBack(r)
	}
	t.Expire(now)
}

// Expire forgets what does not count any more.
func (t *Table) Expire(now time.Time) {
	for e := t.order.Front(); e != nil && now.Sub(e.Value.(row).at) >= StaleAfter; e = t.order.Front() {
		delete(t.entries, e.Value.(row).Key)
		t.order.Remove(e)
	}
}

// Of implements Reader.
func (t *Table) Of(k Key, now time.Time) (Load, bool) {
	l, _, known := t.Told(k, now)
	return l, known
}

// Told is the newest load of a member and when it came.
func (t *Table) Told(k Key, now time.Time) (Load, time.Time, bool) {
	e := t.entries[k]
	if e == nil || now.Sub(e.Value.(row).at) >= StaleAfter {
		return Load{}, time.Time{}, false
	}
	r := e.Value.(row)
	return r.Load, r.at, true
}

// Since returns what came after the load of this number that counts and is not of an origin that is left out, the oldest first and each
// member once, and the number to ask with next. 0 is the number before all.
func (t *Table) Since(number uint64, now time.Time, leave func(origin string) bool) ([]Member, uint64) {
	var out []Member
	for e := t.order.Back(); e != nil && e.Value.(row).number > number; e = e.Prev() {
		r := e.Value.(row)
		if now.Sub(r.at) >= StaleAfter {
			break
		}
		if leave == nil || !leave(r.origin) {
			out = append(out, r.Member)
		}
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out, t.count
}

// Len is how many members have a load.
func (t *Table) Len() int { return len(t.entries) }
