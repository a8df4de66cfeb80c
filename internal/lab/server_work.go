package lab

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// MaxWork bounds what a request to /work needs.
const MaxWork = time.Minute

// maxQueue bounds the name of a queue of /work.
const maxQueue = 64

// workQueues are the requests to /work that wait, by the name of their queue. One of a queue is worked on at a time, the others wait in the order in which they came.
type workQueues struct {
	mu     sync.Mutex
	queues map[string]chan struct{}
}

// queue returns what the one that is worked on holds.
func (q *workQueues) queue(name string) chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.queues == nil {
		q.queues = map[string]chan struct{}{}
	}
	if q.queues[name] == nil {
		q.queues[name] = make(chan struct{}, 1)
	}
	return q.queues[name]
}

// work answers /work?for=100ms&queue=NAME after it was worked on for so long, and closes the connection. Work is waiting, so that many servers fit on a machine. Queues of other names
// wait for nothing here: each is a server of its own.
func (q *workQueues) work(w http.ResponseWriter, r *http.Request) {
	took, err := time.ParseDuration(r.FormValue("for"))
	if err != nil || took < 0 || took > MaxWork {
		http.Error(w, fmt.Sprintf("for: %q: must be 0s to %s", r.FormValue("for"), MaxWork), http.StatusBadRequest)
		return
	}
	name := r.FormValue("queue")
	if len(name) > maxQueue {
		http.Error(w, fmt.Sprintf("queue: %q: must have at most %d octets", name, maxQueue), http.StatusBadRequest)
		return
	}
	w.Header().Set("Connection", "close")
	queue := q.queue(name)
	select {
	case queue <- struct{}{}: // in the order of coming
	case <-r.Context().Done():
		return
	}
	timer := time.NewTimer(took)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
	}
	<-queue
	io.WriteString(w, "done\n")
}
