package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"
)

// LoadOptions configure the load generator.
type LoadOptions struct {
	// Targets are addresses with ports, requested in turn.
	Targets []string
	// Rate is requests per second over all targets. They are sent at fixed times, whether or not
	// earlier ones succeeded, so that an outage does not slow down the requests.
	Rate int
	// Timeout is when a request has failed.
	Timeout time.Duration
	// ReportEvery is the interval of running totals.
	ReportEvery time.Duration
}

// maxOutstanding bounds the requests in flight. Load.Rate times Timeout stays below it in all uses.
const maxOutstanding = 2000

// LoadLine is one line of the load generator's output: running totals of the current window, or the
// report of a finished window.
type LoadLine struct {
	Totals *Report `json:"totals,omitempty"`
	Window *Report `json:"window,omitempty"`
}

// Load sends HTTP requests, each over a new connection, until control or the context ends. A line
// on control begins a new window of that label. The report of the previous window follows when its
// last request has finished. Without control there is one window.
func Load(ctx context.Context, o LoadOptions, control io.Reader, out io.Writer) error {
	if len(o.Targets) == 0 {
		return errors.New("targets: none given")
	}
	if o.Rate < 1 || float64(o.Rate)*o.Timeout.Seconds() > maxOutstanding {
		return fmt.Errorf("rate: %d: must be at least 1, and at most %d requests may be in flight within the timeout of %s", o.Rate, maxOutstanding, o.Timeout)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	marks := make(chan string)
	if control != nil {
		go func() {
			defer cancel()
			for lines := bufio.NewScanner(control); lines.Scan(); {
				select {
				case marks <- lines.Text():
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	g := &loadGenerator{options: o, out: json.NewEncoder(out)}
	return g.run(ctx, marks)
}

// loadGenerator holds the windows of one run.
type loadGenerator struct {
	options LoadOptions
	out     *json.Encoder

	mu      sync.Mutex
	reports sync.WaitGroup
	fault   error
}

// openWindow is a window and its requests in flight.
type openWindow struct {
	mu      sync.Mutex
	window  Window
	pending sync.WaitGroup
}

func (g *loadGenerator) run(ctx context.Context, marks <-chan string) error {
	send := time.NewTicker(time.Second / time.Duration(g.options.Rate))
	defer send.Stop()
	report := time.NewTicker(g.options.ReportEvery)
	defer report.Stop()
	current := &openWindow{}
	for n := 0; ; {
		select {
		case <-ctx.Done():
			g.finish(current)
			g.reports.Wait()
			return g.fault
		case label := <-marks:
			g.finish(current)
			current = &openWindow{window: Window{Label: label}}
		case <-report.C:
			current.mu.Lock()
			totals := current.window.Report()
			current.mu.Unlock()
			g.print(LoadLine{Totals: &totals})
		case <-send.C:
			target := g.options.Targets[n%len(g.options.Targets)]
			n++
			w := current
			w.pending.Add(1)
			go func() {
				defer w.pending.Done()
				r := ask(target, g.options.Timeout)
				w.mu.Lock()
				w.window.Add(r)
				w.mu.Unlock()
			}()
		}
	}
}

// finish prints a window's report when all its requests have finished.
func (g *loadGenerator) finish(w *openWindow) {
	g.reports.Go(func() {
		w.pending.Wait()
		report := w.window.Report()
		g.print(LoadLine{Window: &report})
	})
}

func (g *loadGenerator) print(l LoadLine) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.out.Encode(l); err != nil && g.fault == nil {
		g.fault = fmt.Errorf("write report: %w", err)
	}
}

// ask makes one request over a new connection.
func ask(target string, timeout time.Duration) Request {
	r := Request{Start: time.Now()}
	server, err := get(target, r.Start.Add(timeout))
	r.End = time.Now()
	r.Server = server
	if err != nil {
		r.Fault = fault(err)
	}
	return r
}

func get(target string, deadline time.Time) (server string, err error) {
	dialer := net.Dialer{Deadline: deadline, FallbackDelay: -1}
	conn, err := dialer.Dial("tcp", target)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", target); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", errors.New(response.Status)
	}
	return strings.TrimSpace(string(body)), nil
}

// fault names the kind of an error, so that equal ones can be counted.
func fault(err error) string {
	var network net.Error
	switch {
	case errors.As(err, &network) && network.Timeout():
		return "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "unreachable"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "closed"
	}
	return err.Error()
}
