//go:build chaos

package chaos

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/netdev"
)

// talks are long connections through a TCP echo service that say something all the time. A connection breaks when it is
// reset, closed, or answers something else; silence is no break as long as it ends.
type talks struct {
	t     *testing.T
	conns []net.Conn
	stop  chan struct{}
	wg    sync.WaitGroup

	mu      sync.Mutex
	broken  []string
	longest time.Duration
	spoken  int
}

const (
	talkEvery = 100 * time.Millisecond
	// silence is how long TCP may need to get a message through after a loss of several seconds.
	silence = 90 * time.Second
)

func startTalks(t *testing.T, target string, n int) *talks {
	t.Helper()
	k := &talks{t: t, stop: make(chan struct{})}
	for i := range n {
		ctx, cancel := context.WithTimeout(context.Background(), eventually)
		conn, err := netdev.Dialer(cluster.Topology.Name+"-client1")(ctx, "tcp", target)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		k.conns = append(k.conns, conn)
		k.wg.Go(func() { k.talk(i, conn) })
	}
	t.Cleanup(func() {
		for _, conn := range k.conns {
			conn.Close()
		}
	})
	return k
}

func (k *talks) talk(i int, conn net.Conn) {
	for n := uint64(1); ; n++ {
		select {
		case <-k.stop:
			return
		case <-time.After(talkEvery):
		}
		var message, answer [16]byte
		binary.BigEndian.PutUint64(message[:], uint64(i))
		binary.BigEndian.PutUint64(message[8:], n)
		begin := time.Now()
		err := conn.SetDeadline(begin.Add(silence))
		if err == nil {
			_, err = conn.Write(message[:])
		}
		if err == nil {
			_, err = io.ReadFull(conn, answer[:])
		}
		if err == nil && message != answer {
			err = fmt.Errorf("answered %x to %x", answer, message)
		}
		k.mu.Lock()
		k.longest = max(k.longest, time.Since(begin))
		k.spoken++
		if err != nil {
			k.broken = append(k.broken, fmt.Sprintf("connection %d from %s, message %d: %v", i, conn.LocalAddr(), n, err))
		}
		k.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// end stops the talks and fails the test for each that broke.
func (k *talks) end() {
	k.t.Helper()
	close(k.stop)
	k.wg.Wait()
	k.t.Logf("%d connections said %d things, the longest wait for an answer was %s", len(k.conns), k.spoken, k.longest.Round(time.Millisecond))
	for _, b := range k.broken {
		k.t.Error(b)
	}
}
