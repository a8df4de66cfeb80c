package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// dialFunc opens connections in the namespace of the load.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// load is an HTTP load: each connection sends its next request when the previous response is
// complete.
type load struct {
	dial        dialFunc
	address     string // host:port
	connections int
	duration    time.Duration
	// reconnect opens a connection per request instead of keeping them.
	reconnect bool
}

// loadResult is the result of one load.
type loadResult struct {
	RPS      float64
	Latency  []float64 // ms, of every successful request, in no order
	Failures int
	Failure  error // the last one
}

// run runs the load.
func (l load) run(ctx context.Context) (loadResult, error) {
	var (
		mu    sync.Mutex
		total loadResult
		group sync.WaitGroup
	)
	start := time.Now()
	for range l.connections {
		group.Go(func() {
			latency, failures, err := l.worker(ctx, start.Add(l.duration))
			mu.Lock()
			defer mu.Unlock()
			total.Latency = append(total.Latency, latency...)
			total.Failures += failures
			if err != nil {
				total.Failure = err
			}
		})
	}
	group.Wait()
	total.RPS = float64(len(total.Latency)) / time.Since(start).Seconds()
	if len(total.Latency) == 0 {
		return total, fmt.Errorf("load on %s: no request was answered: %w", l.address, total.Failure)
	}
	return total, nil
}

// worker opens one connection after the other and finishes requests that began before the end. The
// error is that of the last failed request.
func (l load) worker(ctx context.Context, end time.Time) (latency []float64, failures int, last error) {
	var c *client
	defer func() { c.close() }()
	for start := time.Now(); ctx.Err() == nil && start.Before(end); start = time.Now() {
		if c == nil {
			var err error
			if c, err = l.connect(ctx); err != nil {
				if ctx.Err() == nil {
					failures, last = failures+1, err
				}
				continue
			}
		}
		if err := c.get(); err != nil {
			if ctx.Err() == nil {
				failures, last = failures+1, err
			}
			c.close()
			c = nil
			continue
		}
		latency = append(latency, float64(time.Since(start))/float64(time.Millisecond))
		if l.reconnect {
			c.close()
			c = nil
		}
	}
	return latency, failures, last
}

// requestTimeout bounds a connect and a request each.
const requestTimeout = 2 * time.Second

func (l load) connect(ctx context.Context) (*client, error) {
	dialCtx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	conn, err := l.dial(dialCtx, "tcp", l.address)
	if err != nil {
		return nil, err
	}
	request := "GET / HTTP/1.1\r\nHost: " + l.address + "\r\n\r\n"
	return &client{conn: conn, reader: bufio.NewReader(conn), request: []byte(request)}, nil
}

// client is a minimal HTTP/1.1 client, because the generator must cost less than the measured path.
type client struct {
	conn    net.Conn
	reader  *bufio.Reader
	request []byte
}

func (c *client) close() {
	if c != nil {
		c.conn.Close()
	}
}

// get sends the request and reads the response: status 200 and a body with Content-Length.
func (c *client) get() error {
	if err := c.conn.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return err
	}
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	status, err := c.line()
	if err != nil {
		return err
	}
	if _, code, _ := strings.Cut(status, " "); !strings.HasPrefix(code, "200") {
		return fmt.Errorf("answer %q: want status 200", status)
	}
	length := -1
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		if line == "" {
			break
		}
		if name, value, _ := strings.Cut(line, ":"); strings.EqualFold(name, "content-length") {
			if length, err = strconv.Atoi(strings.TrimSpace(value)); err != nil || length < 0 {
				return fmt.Errorf("header %q: not a length", line)
			}
		}
	}
	if length < 0 {
		return fmt.Errorf("answer without Content-Length")
	}
	_, err = io.CopyN(io.Discard, c.reader, int64(length))
	return err
}

// line reads a line without its end.
func (c *client) line() (string, error) {
	line, err := c.reader.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err
}
