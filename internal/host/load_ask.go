package host

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/load"
)

// loadAsker requests the load of servers by HTTP: one request at a time for each page, over a
// persistent connection.
type loadAsker struct {
	given  *given
	clock  clock.Clock
	log    *slog.Logger
	client *http.Client
	// asking is the number of pages that are requested.
	asking atomic.Int32
}

func newLoadAsker(g *given, c clock.Clock, log *slog.Logger) *loadAsker {
	return &loadAsker{
		given: g, clock: c, log: log,
		client: &http.Client{
			Transport: &http.Transport{
				DialContext: (&net.Dialer{}).DialContext, MaxIdleConnsPerHost: 1, IdleConnTimeout: 2 * time.Minute, DisableCompression: true,
				MaxResponseHeaderBytes: 16 << 10,
			},
			// Do not follow redirects, because their targets are not in the plan.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// followPace is how often the asker reads the list of wanted pages.
const followPace = 250 * time.Millisecond

// run requests the wanted pages until ctx ends.
func (a *loadAsker) run(ctx context.Context) {
	var asking sync.WaitGroup
	running := map[page]context.CancelFunc{}
	defer a.client.CloseIdleConnections()
	defer asking.Wait()
	for {
		wanted := a.given.pages()
		for p, stop := range maps.Clone(running) {
			if !wanted[p] {
				stop()
				delete(running, p)
			}
		}
		for p := range wanted {
			if running[p] == nil {
				of, stop := context.WithCancel(ctx)
				running[p] = stop
				a.asking.Add(1)
				asking.Go(func() {
					defer a.asking.Add(-1)
					a.askOn(of, p)
				})
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-a.clock.After(followPace):
		}
	}
}

// askOn requests a page repeatedly until ctx ends, and logs when that begins to fail or to work.
func (a *loadAsker) askOn(ctx context.Context, p page) {
	fault := ""
	for {
		next := a.clock.After(p.interval)
		value, err := a.ask(ctx, p)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
			a.given.tell(p, value)
			if fault != "" {
				a.log.Info("a server tells its load again", "server", p.server, "path", p.path)
			}
			fault = ""
		case fault == "":
			fault = err.Error()
			a.log.Warn("a server does not tell its load", "server", p.server, "path", p.path, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
	}
}

// ask requests a page once.
func (a *loadAsker) ask(ctx context.Context, p page) (float32, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	path, err := url.ParseRequestURI(p.path)
	if err != nil {
		return 0, err
	}
	path.Scheme, path.Host = "http", p.server.String()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, path.String(), nil)
	if err != nil {
		return 0, err
	}
	request.Host = p.host
	request.Header.Set("User-Agent", "shunt")
	response, err := a.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("status %d: must be 200", response.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, load.MaxWords+1))
	if err != nil {
		return 0, err
	}
	if len(body) > load.MaxWords {
		return 0, fmt.Errorf("body: must be at most %d bytes", load.MaxWords)
	}
	return load.ParseGiven(string(body))
}
