package lab_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"
)

// stream sends numbered datagrams over several flows through a UDP echo service and records which
// were echoed.
type stream struct {
	stop  chan struct{}
	flows []*flow
	wg    sync.WaitGroup
}

// flow is one socket of a stream.
type flow struct {
	conn net.Conn
	done chan struct{} // closed when the receiver ended

	mu       sync.Mutex
	sent     map[uint32]time.Time
	answered map[uint32]time.Time
}

// Flows and pace of a stream. There are enough flows that every mux carries some.
const (
	streamFlows = 16
	streamEvery = 10 * time.Millisecond
)

// startStream begins to send to the targets in turn, and returns when every flow has its first
// reply.
func startStream(t *testing.T, targets []string) *stream {
	t.Helper()
	s := &stream{stop: make(chan struct{})}
	for i := range streamFlows {
		conn, err := dial("udp", targets[i%len(targets)])
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		f := &flow{conn: conn, done: make(chan struct{}), sent: map[uint32]time.Time{}, answered: map[uint32]time.Time{}}
		s.flows = append(s.flows, f)
		go f.receive()
		s.wg.Go(func() { f.send(s.stop) })
	}
	s.awaitAnswers(t)
	return s
}

// awaitAnswers waits until every flow has a reply to a datagram sent from now on.
func (s *stream) awaitAnswers(t *testing.T) {
	t.Helper()
	now := time.Now()
	for _, f := range s.flows {
		await(t, "an answer on the flow from "+f.conn.LocalAddr().String(), func(context.Context) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			for n, at := range f.sent {
				if at.After(now) && !f.answered[n].IsZero() {
					return nil
				}
			}
			return errors.New("none")
		})
	}
}

func (f *flow) send(stop <-chan struct{}) {
	tick := time.NewTicker(streamEvery)
	defer tick.Stop()
	var message [4]byte
	for n := uint32(0); ; n++ {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		binary.BigEndian.PutUint32(message[:], n)
		f.mu.Lock()
		f.sent[n] = time.Now()
		f.mu.Unlock()
		// An ICMP error of an earlier datagram is reported here. That datagram stays without a
		// reply.
		if _, err := f.conn.Write(message[:]); err != nil {
			_, _ = f.conn.Write(message[:])
		}
	}
}

func (f *flow) receive() {
	defer close(f.done)
	buf := make([]byte, 64)
	for {
		n, err := f.conn.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && n == 4 {
			f.mu.Lock()
			f.answered[binary.BigEndian.Uint32(buf)] = time.Now()
			f.mu.Unlock()
		}
	}
}

// finish stops sending, waits for the last replies, and returns how many datagrams were sent, how
// many got no reply, and the longest time between two replies on any one flow.
func (s *stream) finish(t *testing.T) (sent, lost int, gap time.Duration) {
	t.Helper()
	close(s.stop)
	s.wg.Wait()
	deadline := time.After(3 * time.Second)
	tick := time.NewTicker(streamEvery)
	defer tick.Stop()
	for s.unanswered() > 0 {
		select {
		case <-tick.C:
			continue
		case <-deadline:
		}
		break
	}
	for _, f := range s.flows {
		f.conn.Close()
		<-f.done
		sent += len(f.sent)
		gap = max(gap, f.longestGap())
	}
	return sent, s.unanswered(), gap
}

// since counts datagrams sent after a time, and those of them without a reply.
func (s *stream) since(start time.Time) (sent, lost int) {
	for _, f := range s.flows {
		f.mu.Lock()
		for n, at := range f.sent {
			if at.Before(start) {
				continue
			}
			sent++
			if f.answered[n].IsZero() {
				lost++
			}
		}
		f.mu.Unlock()
	}
	return sent, lost
}

func (s *stream) unanswered() int {
	_, lost := s.since(time.Time{})
	return lost
}

func (f *flow) longestGap() (gap time.Duration) {
	var last time.Time
	for n := uint32(0); int(n) < len(f.sent); n++ {
		at := f.answered[n]
		if at.IsZero() {
			continue
		}
		if !last.IsZero() {
			gap = max(gap, at.Sub(last))
		}
		last = at
	}
	return gap
}

// describe lists the lost datagrams of each flow.
func (s *stream) describe() string {
	text := ""
	for i, f := range s.flows {
		f.mu.Lock()
		for n := range f.sent {
			if f.answered[n].IsZero() {
				text += fmt.Sprintf("flow %d from %s: datagram %d at %s\n", i, f.conn.LocalAddr(), n, f.sent[n].Format("15:04:05.000"))
			}
		}
		f.mu.Unlock()
	}
	return text
}
