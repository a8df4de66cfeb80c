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
	"path/filepath"
	"strings"
	"time"

	"github.com/shuntlb/shunt/internal/bgp"
)

// callTimeout bounds one call; the other end is on this machine.
const callTimeout = 5 * time.Second

// Client is a bgp.Speaker in another process. It is safe for concurrent use.
type Client struct {
	http http.Client
}

var _ bgp.Speaker = (*Client)(nil)

// NewClient makes a client of the speaker of a run directory; whether one runs shows with the first call.
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

// Set implements bgp.Speaker. The speaker may withhold the routes while the data plane is not attached.
func (c *Client) Set(ctx context.Context, want bgp.State) error {
	body, err := json.Marshal(want)
	if err != nil {
		return fmt.Errorf("encode bgp state: %w", err)
	}
	a, err := c.call(ctx, http.MethodPost, "/v1/set", body)
	if err != nil {
		return fmt.Errorf("set bgp state: %w", err)
	}
	if a.Error != "" {
		return errors.New(a.Error)
	}
	return nil
}

// Status implements bgp.Speaker.
func (c *Client) Status(ctx context.Context) (bgp.Status, error) {
	a, err := c.call(ctx, http.MethodGet, "/v1/status", nil)
	if err != nil {
		return bgp.Status{}, fmt.Errorf("read bgp status: %w", err)
	}
	return a.Status, nil
}

// Stop ends the speaker's process and with it all routes. It returns when the process has let go of its socket.
func (c *Client) Stop(ctx context.Context) error {
	if _, err := c.call(ctx, http.MethodPost, "/v1/stop", nil); err != nil {
		return fmt.Errorf("stop speaker: %w", err)
	}
	for {
		if _, err := c.call(ctx, http.MethodGet, "/v1/status", nil); err != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stop speaker: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Close implements bgp.Speaker: it lets go of the connection, the process and its routes stay.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

func (c *Client) call(ctx context.Context, method, path string, body []byte) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://speaker"+path, bytes.NewReader(body))
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
	return a, nil
}
