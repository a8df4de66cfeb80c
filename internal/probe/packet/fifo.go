package packet

// maxSpare is the largest capacity, in entries, that an empty queue keeps.
const maxSpare = 4096

// fifo is a queue of entries.
type fifo struct {
	list []entry
	head int
}

func (q *fifo) push(e entry) { q.list = append(q.list, e) }
func (q *fifo) len() int     { return len(q.list) - q.head }
func (q *fifo) peek() entry  { return q.list[q.head] }
func (q *fifo) pop() {
	if q.head++; q.head == len(q.list) {
		if q.list, q.head = q.list[:0], 0; cap(q.list) > maxSpare {
			q.list = nil
		}
	} else if q.head >= 1024 && q.head*2 >= len(q.list) {
		q.list, q.head = q.list[:copy(q.list, q.list[q.head:])], 0
	}
}
