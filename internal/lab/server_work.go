package lab

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// MaxWork bounds the duration of a request to /work.
const MaxWork = time.Minute

// maxQueue bounds the name of a queue of /work.
const maxQueue = 64

// workQueues holds the waiting requests to /work, by the name of their queue. A queue processes one
// request at a time, in order of arrival.
type workQueues struct {
	mu     sync.Mutex
	queues map[string]chan struct{}
}

// queue returns the channel that the request in progress holds.
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

// work serves /work?for=100ms&queue=NAME: it responds after it has processed the request for that
// time, and closes the connection. Processing only waits, so that a machine can run many servers.
// Each queue name is a separate server, and queues do not wait for each other.
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
	case queue <- struct{}{}: // in order of arrival
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
