package load

import (
	"container/list"
	"time"
)

// Table holds the newest load of each member, in order of arrival, so that recent loads are found
// without scanning the rest. It is not safe for concurrent use.
type Table struct {
	entries map[Key]*list.Element // elements hold a row
	order   *list.List            // by number, and therefore by time
	count   uint64
}

// row is a load in a table.
type row struct {
	Member
	origin string
	number uint64
	at     time.Time
}

// NewTable returns an empty table.
func NewTable() *Table { return &Table{entries: map[Key]*list.Element{}, order: list.New()} }

// Put adds loads at a time not before that of the last Put. origin is their source, for Since.
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

// Expire removes loads that are no longer valid.
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

// Told returns the newest load of a member and its arrival time.
func (t *Table) Told(k Key, now time.Time) (Load, time.Time, bool) {
	e := t.entries[k]
	if e == nil || now.Sub(e.Value.(row).at) >= StaleAfter {
		return Load{}, time.Time{}, false
	}
	r := e.Value.(row)
	return r.Load, r.at, true
}

// Since returns the valid loads after the given number whose origin is not excluded, oldest first
// and each member once, and the number for the next call. Start with 0.
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

// Len returns the number of members with a load.
func (t *Table) Len() int { return len(t.entries) }
