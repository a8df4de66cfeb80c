package lab_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// kept are long HTTP connections that send requests all the time. A connection breaks when it ends,
// or when another server responds.
type kept struct {
	stop chan struct{}
	wg   sync.WaitGroup

	mu     sync.Mutex
	asked  int
	broken []string
}

// keptEvery is the time between two requests on one connection.
const keptEvery = 20 * time.Millisecond

// keep opens `each` connections to each target.
func keep(t *testing.T, targets []string, each int) *kept {
	t.Helper()
	k := &kept{stop: make(chan struct{})}
	for i := range each * len(targets) {
		conn, err := dial("tcp", targets[i%len(targets)])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		k.wg.Go(func() { k.talk(conn) })
	}
	return k
}

func (k *kept) talk(conn net.Conn) {
	answers := bufio.NewReader(conn)
	tick := time.NewTicker(keptEvery)
	defer tick.Stop()
	first := ""
	for n := 1; ; n++ {
		select {
		case <-k.stop:
			return
		case <-tick.C:
		}
		who, err := askAgain(conn, answers)
		if first == "" {
			first = who
		}
		if err == nil && who != first {
			err = fmt.Errorf("%s answered, before it was %s", who, first)
		}
		k.mu.Lock()
		k.asked++
		if err != nil {
			k.broken = append(k.broken, fmt.Sprintf("%s to %s, question %d: %v", conn.LocalAddr(), conn.RemoteAddr(), n, err))
		}
		k.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// askAgain requests a server's name over a connection that stays open.
func askAgain(conn net.Conn, answers *bufio.Reader) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(eventually)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: kept\r\n\r\n"); err != nil {
		return "", err
	}
	answer, err := http.ReadResponse(answers, nil)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	name, err := io.ReadAll(answer.Body)
	return strings.TrimSpace(string(name)), err
}

// end stops the requests and fails the test for each broken connection.
func (k *kept) end(t *testing.T) {
	t.Helper()
	close(k.stop)
	k.wg.Wait()
	t.Logf("%d questions on long connections", k.asked)
	for _, b := range k.broken {
		t.Errorf("broke: %s", b)
	}
}
