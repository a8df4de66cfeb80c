package loop

// queue is numbers that wait for their turn, in the order they came.
type queue struct {
	ids  []uint32
	head int
}

func (q *queue) len() int { return len(q.ids) - q.head }

func (q *queue) push(id uint32) {
	if q.head == len(q.ids) {
		q.ids, q.head = q.ids[:0], 0
	} else if q.head >= 1024 && q.head*2 >= len(q.ids) {
		q.ids, q.head = q.ids[:copy(q.ids, q.ids[q.head:])], 0
	}
	q.ids = append(q.ids, id)
}

// first is the next; there must be one.
func (q *queue) first() uint32 { return q.ids[q.head] }

// pop takes it out.
func (q *queue) pop() { q.head++ }
