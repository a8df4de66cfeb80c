package loop

// queue is a FIFO of numbers.
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

// first returns the first number; the queue must not be empty.
func (q *queue) first() uint32 { return q.ids[q.head] }

// pop removes the first number.
func (q *queue) pop() { q.head++ }
