package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lifeWorkers is the number of workers. Each handles its share of the connections.
	lifeWorkers = 32
	// lifePatience is when a connection without a reply counts as broken.
	lifePatience = 30 * time.Second
	// lifeRest is the pause of a worker between two rounds.
	lifeRest = 50 * time.Millisecond
)

// lives are long connections to an echo service.
type lives struct {
	conns  []net.Conn
	broken []error // by connection; owned by its worker
	rounds uint64
}

// openLives opens count connections. Each has exchanged one message.
func openLives(ctx context.Context, dial dialFunc, to netip.AddrPort, count int) (*lives, error) {
	l := &lives{conns: make([]net.Conn, count), broken: make([]error, count)}
	errs := make([]error, lifeWorkers)
	l.each(func(worker int, share []int) {
		for _, i := range share {
			dialing, cancel := context.WithTimeout(ctx, lifePatience)
			conn, err := dial(dialing, "tcp4", to.String())
			cancel()
			if err != nil {
				errs[worker] = fmt.Errorf("connection %d: %w", i, err)
				return
			}
			l.conns[i] = conn
		}
		l.say(share)
	})
	err := errors.Join(errs...)
	for i, broken := range l.broken {
		if broken != nil && err == nil {
			err = fmt.Errorf("connection %d broke before any change: %w", i, broken)
		}
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// close resets open connections.
func (l *lives) close() {
	for _, conn := range l.conns {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset frees the ports
			tcp.Close()
		}
	}
}

// add takes over the connections of others, none of which is broken.
func (l *lives) add(others *lives) {
	l.conns, l.broken = append(l.conns, others.conns...), append(l.broken, others.broken...)
}

// lost returns how many are broken.
func (l *lives) lost() (broken int) {
	for _, err := range l.broken {
		if err != nil {
			broken++
		}
	}
	return broken
}

// flows returns the connections' addresses.
func (l *lives) flows() (out []flowTuple) {
	for _, conn := range l.conns {
		client, vip := conn.LocalAddr().(*net.TCPAddr).AddrPort(), conn.RemoteAddr().(*net.TCPAddr).AddrPort()
		out = append(out, flowTuple{netip.AddrPortFrom(client.Addr().Unmap(), client.Port()), netip.AddrPortFrom(vip.Addr().Unmap(), vip.Port())})
	}
	return out
}

// each runs f for every worker with the numbers of its connections, and waits for all.
func (l *lives) each(f func(worker int, share []int)) {
	var group sync.WaitGroup
	for worker := range lifeWorkers {
		group.Go(func() {
			var share []int
			for i := worker; i < len(l.conns); i += lifeWorkers {
				share = append(share, i)
			}
			f(worker, share)
		})
	}
	group.Wait()
}

// say sends a different message over each of the share's connections that are not broken, and waits
// for the echoes.
func (l *lives) say(share []int) {
	round := atomic.AddUint64(&l.rounds, 1)
	message := func(i int) []byte {
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(i)), round)
	}
	for _, i := range share {
		if l.broken[i] != nil {
			continue
		}
		err := l.conns[i].SetDeadline(time.Now().Add(lifePatience))
		if err == nil {
			_, err = l.conns[i].Write(message(i))
		}
		l.broken[i] = err
	}
	got := make([]byte, 16)
	for _, i := range share {
		if l.broken[i] != nil {
			continue
		}
		want := message(i)
		_, err := io.ReadFull(l.conns[i], got)
		if err == nil && string(got) != string(want) {
			err = fmt.Errorf("said %x, heard %x", want, got)
		}
		l.broken[i] = err
	}
}

// lifeTalk sends messages over all connections repeatedly.
type lifeTalk struct {
	lives *lives
	stop  chan struct{}
	done  chan struct{}
}

// talk begins to send messages.
func (l *lives) talk() *lifeTalk {
	t := &lifeTalk{lives: l, stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(t.done)
		l.each(func(_ int, share []int) {
			for last := false; !last; {
				timer := time.NewTimer(lifeRest)
				select {
				case <-t.stop:
					last = true // one more round, all of it after the end
				case <-timer.C:
				}
				timer.Stop()
				l.say(share)
			}
		})
	}()
	return t
}

// end sends once more on every connection and returns how many are broken.
func (t *lifeTalk) end() (broken int) {
	close(t.stop)
	<-t.done
	return t.lives.lost()
}
