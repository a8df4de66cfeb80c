package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Timeouts of an unresponsive manager before the next one is tried. The kernel of a frozen manager
// still accepts connections.
const (
	dialTimeout      = 2 * time.Second
	handshakeTimeout = 3 * time.Second
	// pingAfter and pingTimeout detect a manager that froze during a call.
	pingAfter   = 3 * time.Second
	pingTimeout = 3 * time.Second
)

// servers are the equivalent managers that a client may call. A request goes to the manager that
// responded last, and to the next if that one cannot be reached. It is safe for concurrent use.
type servers struct {
	urls      []*url.URL
	transport http.RoundTripper

	mu      sync.Mutex
	present int // index of urls
}

// newServers takes URLs that parseServers returned.
func newServers(all []string, transport http.RoundTripper) (*servers, error) {
	s := &servers{transport: transport}
	for _, text := range all {
		u, err := url.Parse(text)
		if err != nil {
			return nil, err
		}
		s.urls = append(s.urls, u)
	}
	return s, nil
}

// at returns the current manager.
func (s *servers) at() (index int, u *url.URL) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.present, s.urls[s.present]
}

// leave makes the next manager the current one, unless the current one changed meanwhile.
func (s *servers) leave(index int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.present == index {
		s.present = (index + 1) % len(s.urls)
	}
}

// String returns the current manager's URL.
func (s *servers) String() string {
	_, u := s.at()
	return u.String()
}

// unreachable means that no manager could be connected to, and so nothing was sent. Its text names
// each manager if there are several.
type unreachable struct{ causes []error }

func (e *unreachable) Error() string {
	var texts []string
	for _, err := range e.causes {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the causes.
func (e *unreachable) Unwrap() []error { return e.causes }

// lostAnswer means that a request was sent and the connection broke before the response was
// complete.
type lostAnswer struct {
	error
	read bool // the request changes nothing
}

func (e lostAnswer) Unwrap() error { return e.error }

// RoundTrip implements http.RoundTripper. It also repeats a read whose connection breaks. It
// repeats a change only if certainly nothing of it was sent.
func (s *servers) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		body, err = io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	failed, read := &unreachable{}, isRead(r.URL.Path)
	for range s.urls {
		index, u := s.at()
		res, sent, err := s.send(r, u, body)
		switch {
		case err == nil:
			res.Body = answer{res.Body, read}
			return res, nil
		case r.Context().Err() != nil:
			return nil, err
		case sent && !read:
			s.leave(index)
			return nil, lostAnswer{err, false}
		}
		if len(s.urls) > 1 {
			err = fmt.Errorf("%s: %w", u, err)
		}
		failed.causes = append(failed.causes, err)
		s.leave(index)
	}
	return nil, failed
}

// send makes one attempt. sent reports whether the manager may have received the request.
func (s *servers) send(r *http.Request, to *url.URL, body []byte) (res *http.Response, sent bool, err error) {
	var wrote atomic.Bool
	trace := &httptrace.ClientTrace{WroteHeaders: func() { wrote.Store(true) }}
	out := r.Clone(httptrace.WithClientTrace(r.Context(), trace))
	out.URL.Scheme, out.URL.Host, out.Host = to.Scheme, to.Host, ""
	if r.Body != nil {
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		out.Body, _ = out.GetBody()
		out.ContentLength = int64(len(body))
	}
	res, err = s.transport.RoundTrip(out)
	return res, wrote.Load(), err
}

// answer is a response body that turns a broken connection into a lostAnswer.
type answer struct {
	io.ReadCloser
	read bool
}

// Read implements io.Reader.
func (a answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		err = lostAnswer{err, a.read}
	}
	return n, err
}

// bounded makes a dialer give up after dialTimeout.
func bounded(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		return dial(ctx, network, address)
	}
}

// parseServers reads URLs of managers, separated by commas in any of the texts.
func parseServers(texts ...string) ([]string, error) {
	var out []string
	seen := map[string]bool{}
	for _, text := range texts {
		for one := range strings.SplitSeq(text, ",") {
			one = strings.TrimSuffix(strings.TrimSpace(one), "/")
			u, err := url.Parse(one)
			if err == nil && u.User != nil {
				one = u.Redacted()
			}
			if err != nil || u.Scheme != "https" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
				return nil, badServer(one)
			}
			if !seen[one] {
				seen[one] = true
				out = append(out, one)
			}
		}
	}
	if len(out) == 0 {
		return nil, badServer("")
	}
	return out, nil
}

// badServer is a text that is not a manager's URL.
type badServer string

func (e badServer) Error() string {
	return fmt.Sprintf("%q: must be a URL such as https://10.99.0.11:8443, or several separated by commas", string(e))
}

// serverList is a text or a list of texts in YAML.
type serverList []string

// UnmarshalYAML implements yaml.InterfaceUnmarshaler.
func (l *serverList) UnmarshalYAML(unmarshal func(any) error) error {
	var one string
	if unmarshal(&one) == nil {
		*l = serverList{one}
		return nil
	}
	var several []string
	if err := unmarshal(&several); err != nil {
		return errors.New("server: must be a URL, or a list of URLs")
	}
	*l = several
	return nil
}
