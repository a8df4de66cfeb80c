package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/bgp"
)

// callTimeout bounds one call; the other end is on this machine.
const callTimeout = 5 * time.Second

// Client is a bgp.Speaker in another process. It is safe for concurrent use.
type Client struct {
	http http.Client

	// setting is held during Set, so that the speaker has the state of the last one.
	setting sync.Mutex

	// mu guards the last response and the state that the speaker has; generation is 0 if that is
	// unknown.
	mu         sync.Mutex
	want       bgp.State
	generation uint64
	routes     uint64
	announced  []bgp.Route
}

var _ bgp.Speaker = (*Client)(nil)

// NewClient returns a client of the speaker of a run directory. The first call shows whether one
// runs.
func NewClient(runDir string) *Client {
	path := filepath.Join(runDir, socketName)
	return &Client{http: http.Client{
		Timeout: callTimeout,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", path)
			},
			MaxIdleConns: 1,
		},
	}}
}

// Set implements bgp.Speaker. The speaker may withhold the routes while the data plane is not
// attached. A state that the speaker has already is not sent again: a sign of life replaces it, so
// that the cost of an idle mux does not depend on its number of routes.
func (c *Client) Set(ctx context.Context, want bgp.State) error {
	c.setting.Lock()
	defer c.setting.Unlock()
	c.mu.Lock()
	generation := c.generation
	same := generation != 0 && c.want.Equal(want)
	c.mu.Unlock()
	if same {
		a, err := c.call(ctx, http.MethodPost, "/v1/alive", url.Values{generationField: {strconv.FormatUint(generation, 10)}}, nil)
		if err == nil && a.Error != "" {
			return errors.New(a.Error)
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, errOtherState) {
			return fmt.Errorf("set bgp state: %w", err)
		}
	}
	body, err := json.Marshal(want)
	if err != nil {
		return fmt.Errorf("encode bgp state: %w", err)
	}
	c.forget()
	a, err := c.call(ctx, http.MethodPost, "/v1/set", nil, body)
	if err != nil {
		return fmt.Errorf("set bgp state: %w", err)
	}
	c.mu.Lock()
	c.want, c.generation = want.Clone(), a.Generation
	c.mu.Unlock()
	if a.Error != "" {
		return errors.New(a.Error)
	}
	return nil
}

// Status implements bgp.Speaker.
func (c *Client) Status(ctx context.Context) (bgp.Status, error) {
	a, err := c.call(ctx, http.MethodGet, "/v1/status", nil, nil)
	if err != nil {
		return bgp.Status{}, fmt.Errorf("read bgp status: %w", err)
	}
	return a.Status, nil
}

// Peers implements bgp.Speaker.
func (c *Client) Peers(ctx context.Context) ([]bgp.PeerStatus, error) {
	s, err := c.Status(ctx)
	return s.Peers, err
}

// forget makes the next Set send the whole state.
func (c *Client) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation = 0
}

// Stop ends the speaker's process and with it all routes. It returns when the process has closed
// its socket.
func (c *Client) Stop(ctx context.Context) error {
	if _, err := c.call(ctx, http.MethodPost, "/v1/stop", nil, nil); err != nil {
		return fmt.Errorf("stop speaker: %w", err)
	}
	for {
		if _, err := c.call(ctx, http.MethodGet, "/v1/status", nil, nil); err != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stop speaker: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Close implements bgp.Speaker. It closes the connection; the process and its routes stay.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// errOtherState reports that the speaker has another state than the sign of life, or does not
// support signs of life.
var errOtherState = errors.New("the speaker has another state")

// call sends a request and returns the response with the announced routes in its status. These are
// copied from the previous response if they are the same.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, body []byte) (answer, error) {
	if query == nil {
		query = url.Values{}
	}
	c.mu.Lock()
	routes, announced := c.routes, c.announced
	c.mu.Unlock()
	if routes != 0 {
		query.Set(routesField, strconv.FormatUint(routes, 10))
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://speaker"+path+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxMessage))
	if err != nil {
		return answer{}, err
	}
	if path == "/v1/alive" && (resp.StatusCode == http.StatusConflict || resp.StatusCode == http.StatusNotFound) {
		return answer{}, errOtherState
	}
	if resp.StatusCode != http.StatusOK {
		return answer{}, errors.New(strings.TrimSpace(string(data)))
	}
	var a answer
	if len(data) == 0 {
		return a, nil
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return answer{}, fmt.Errorf("read answer: %w", err)
	}
	a.Status.Process = bgp.Process{PID: a.PID, Version: a.Version, Commit: a.Commit}
	if a.SameRoutes {
		a.Status.Routes = announced
		return a, nil
	}
	c.mu.Lock()
	c.routes, c.announced = a.Routes, a.Status.Routes
	c.mu.Unlock()
	return a, nil
}
