package checker

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// goroutines is a typical checker in Go: a goroutine and a connection for each probe, net/http for
// HTTP.
type goroutines struct {
	job       Job
	client    *http.Client
	slots     chan struct{} // one for each probe in flight
	good, bad atomic.Uint64 // of steady probes
	running   sync.WaitGroup
}

func newGoroutines(job Job) (Checker, error) {
	dialer := net.Dialer{FallbackDelay: -1, KeepAlive: -1}
	return &goroutines{
		job: job, slots: make(chan struct{}, job.InFlight),
		client: &http.Client{
			Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true, DialContext: dialer.DialContext},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Prepare implements Checker.
func (g *goroutines) Prepare(context.Context) error { return nil }

// Tables implements Checker.
func (g *goroutines) Tables() (uint64, error) { return 0, nil }

// Once implements Checker.
func (g *goroutines) Once(ctx context.Context) (Tally, error) {
	var good, bad atomic.Uint64
	for i := range g.job.Targets {
		g.start(ctx, i, &good, &bad)
	}
	g.running.Wait()
	return Tally{Good: good.Load(), Bad: bad.Load()}, ctx.Err()
}

// Steady implements Checker. Targets are spread evenly over the interval.
func (g *goroutines) Steady(ctx context.Context) error {
	began := time.Now()
	go func() {
		for n := 0; ctx.Err() == nil; n++ {
			round, i := n/g.job.Targets, n%g.job.Targets
			due := time.Duration(round)*g.job.Interval + g.job.Interval*time.Duration(i)/time.Duration(g.job.Targets)
			if wait := due - time.Since(began); wait > 0 {
				select {
				case <-time.After(wait):
				case <-ctx.Done():
					return
				}
			}
			g.start(ctx, i, &g.good, &g.bad)
		}
	}()
	return nil
}

// Report implements Checker.
func (g *goroutines) Report() Tally { return Tally{Good: g.good.Load(), Bad: g.bad.Load()} }

// Close implements Checker.
func (g *goroutines) Close() error { return nil }

// start waits for a slot and begins a probe.
func (g *goroutines) start(ctx context.Context, i int, good, bad *atomic.Uint64) {
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	g.running.Go(func() {
		defer func() { <-g.slots }()
		ctx, cancel := context.WithTimeout(ctx, g.job.Timeout)
		defer cancel()
		if g.probe(ctx, g.job.Target(i).String()) {
			good.Add(1)
		} else {
			bad.Add(1)
		}
	})
}

// probe reports whether a server serves.
func (g *goroutines) probe(ctx context.Context, address string) bool {
	if g.job.Kind == TCP {
		d := net.Dialer{FallbackDelay: -1, KeepAlive: -1}
		conn, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return false
	}
	answer, err := g.client.Do(request)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return err == nil && answer.StatusCode >= 200 && answer.StatusCode <= 399
}
