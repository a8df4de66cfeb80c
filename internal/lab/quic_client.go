package lab

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/shuntlb/shunt/internal/notify"
)

const (
	quicServerName = "lab"
	// quicPatience bounds every step of a QUIC client.
	quicPatience = time.Minute
	// quicBody is the size of one download. At its pace it takes about a third of a second, so that
	// one is nearly always in progress, and a machine can run many clients.
	quicBody  = 1 << 18
	quicQuery = "/bytes/262144?every=20ms"
)

// QUICReport is one line that a QUIC client prints.
type QUICReport struct {
	// Event is "connected", "moved", "ended" or "failed".
	Event string `json:"event"`
	// Server is the name of the server that responds.
	Server string `json:"server,omitempty"`
	// From is the client's address and port.
	From string `json:"from,omitempty"`
	// Downloads counts complete ones.
	Downloads int    `json:"downloads"`
	Error     string `json:"error,omitempty"`
}

// QUICClientOptions configure a QUIC client.
type QUICClientOptions struct {
	Target netip.AddrPort
	// From are the client's source addresses, which it uses in turn when it moves. Empty means any.
	From []netip.Addr
	// Names is the number of ALPN protocols offered in addition to h3. With enough of them a
	// ClientHello exceeds a datagram.
	Names int
}

// QUICClient downloads repeatedly over one HTTP/3 connection. At each line "move" of commands it
// continues from another port and the next address. It fails when a download is broken or comes
// from another server than the first. The line "end", or the end of commands, ends it. Reports are
// JSON lines.
func QUICClient(ctx context.Context, o QUICClientOptions, commands io.Reader, out io.Writer) error {
	c := &quicClient{o: o, done: make(chan error, 1), progress: make(chan struct{}, 1)}
	err := c.run(ctx, commands, json.NewEncoder(out))
	if c.conn != nil {
		c.conn.CloseWithError(0, "")
	}
	for _, t := range c.transports {
		t.Close()
		t.Conn.Close()
	}
	if err != nil {
		json.NewEncoder(out).Encode(c.report("failed", err))
	}
	return err
}

type quicClient struct {
	o          QUICClientOptions
	conn       *quic.Conn
	http       *http3.ClientConn
	transports []*quic.Transport
	path       *quic.Path // nil: the first
	done       chan error // the downloads ended
	progress   chan struct{}

	mu        sync.Mutex
	server    string
	downloads int
}

func (c *quicClient) run(ctx context.Context, commands io.Reader, out *json.Encoder) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := c.connect(ctx); err != nil {
		return err
	}
	if err := out.Encode(c.report("connected", nil)); err != nil {
		return err
	}
	go func() { c.done <- c.download(ctx) }()
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(commands); scanner.Scan(); {
			select {
			case lines <- strings.TrimSpace(scanner.Text()):
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case err := <-c.done:
			return err
		case line := <-lines:
			switch line {
			case "move":
				if err := c.move(ctx); err != nil {
					return err
				}
				if err := out.Encode(c.report("moved", nil)); err != nil {
					return err
				}
			case "end", "":
				// The download in progress must complete.
				if err := c.more(ctx, 1); err != nil {
					return err
				}
				return out.Encode(c.report("ended", nil))
			default:
				return fmt.Errorf("command: %q: must be move or end", line)
			}
		}
	}
}

func (c *quicClient) report(event string, err error) QUICReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := QUICReport{Event: event, Server: c.server, Downloads: c.downloads}
	if n := len(c.transports); n > 0 {
		r.From = c.transports[n-1].Conn.LocalAddr().String()
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// open makes a socket with another port, at the next address.
func (c *quicClient) open() (*quic.Transport, error) {
	network, local := "udp4", net.UDPAddr{}
	if c.o.Target.Addr().Is6() {
		network = "udp6"
	}
	if n := len(c.o.From); n > 0 {
		local.IP = c.o.From[len(c.transports)%n].AsSlice()
	}
	conn, err := net.ListenUDP(network, &local)
	if err != nil {
		return nil, err
	}
	t := &quic.Transport{Conn: conn}
	c.transports = append(c.transports, t)
	return t, nil
}

func (c *quicClient) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, quicPatience)
	defer cancel()
	transport, err := c.open()
	if err != nil {
		return err
	}
	names := []string{http3.NextProtoH3}
	for i := range c.o.Names {
		names = append(names, fmt.Sprintf("padding-of-the-client-hello-%04d", i))
	}
	config := &tls.Config{InsecureSkipVerify: true, ServerName: quicServerName, NextProtos: names}
	c.conn, err = transport.Dial(ctx, net.UDPAddrFromAddrPort(c.o.Target), config, &quic.Config{MaxIdleTimeout: quicIdle})
	if err != nil {
		return fmt.Errorf("connect to %s: %w", c.o.Target, err)
	}
	c.http = (&http3.Transport{}).NewClientConn(c.conn)
	return c.get(ctx, "/bytes/0", 0)
}

// download requests bodies one after the other until ctx ends.
func (c *quicClient) download(ctx context.Context) error {
	for {
		if err := c.get(ctx, quicQuery, quicBody); err != nil {
			return err
		}
		c.mu.Lock()
		c.downloads++
		c.mu.Unlock()
		notify.Send(c.progress)
	}
}

// get fetches a body of /bytes/N, and checks each of its bytes and the server that sent it.
func (c *quicClient) get(ctx context.Context, path string, length int64) error {
	ctx, cancel := context.WithTimeout(ctx, quicPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+quicServerName+path, nil)
	if err != nil {
		return err
	}
	answer, err := c.http.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, answer.Status)
	}
	if err := c.from(answer.Header.Get("Server")); err != nil {
		return err
	}
	n, err := io.Copy(&patternChecker{}, answer.Body)
	if err == nil && n != length {
		err = fmt.Errorf("%d bytes, want %d", n, length)
	}
	if err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	return nil
}

// from records the responding server, which must stay the same for the life of the connection.
func (c *quicClient) from(server string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == "" {
		c.server = server
	}
	if server != c.server || server == "" {
		return fmt.Errorf("%q answers, before it was %q", server, c.server)
	}
	return nil
}

// patternChecker accepts the body of /bytes/N and no other data.
type patternChecker struct{ n int64 }

// Write implements io.Writer.
func (p *patternChecker) Write(b []byte) (int, error) {
	for i, v := range b {
		if want := PatternByte(p.n); v != want {
			return i, fmt.Errorf("byte %d is %d, want %d", p.n, v, want)
		}
		p.n++
	}
	return len(b), nil
}

// move continues from another port, and returns when a download that began there is complete.
func (c *quicClient) move(ctx context.Context) error {
	probing, cancel := context.WithTimeout(ctx, quicPatience)
	defer cancel()
	transport, err := c.open()
	if err != nil {
		return err
	}
	path, err := c.conn.AddPath(transport)
	if err != nil {
		return fmt.Errorf("move to %s: %w", transport.Conn.LocalAddr(), err)
	}
	if err := path.Probe(probing); err != nil {
		return fmt.Errorf("probe the path from %s: %w", transport.Conn.LocalAddr(), err)
	}
	if err := path.Switch(); err != nil {
		return fmt.Errorf("move to %s: %w", transport.Conn.LocalAddr(), err)
	}
	if c.path != nil {
		if err := c.path.Close(); err != nil {
			return fmt.Errorf("leave a path: %w", err)
		}
	}
	c.path = path
	return c.more(ctx, 2)
}

// more waits for n more complete downloads. Of two, the second began after the call.
func (c *quicClient) more(ctx context.Context, n int) error {
	count := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.downloads
	}
	deadline := time.After(quicPatience)
	for want := count() + n; count() < want; {
		select {
		case <-c.progress:
		case err := <-c.done:
			return err
		case <-deadline:
			return fmt.Errorf("no download is complete within %s", quicPatience)
		case <-ctx.Done():
			return errors.New("broken off")
		}
	}
	return nil
}
