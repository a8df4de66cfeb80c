package lab

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestWebServer(t *testing.T) {
	server := httptest.NewServer(webHandler("host1-vm1"))
	defer server.Close()
	for path, want := range map[string]struct {
		status int
		body   string
	}{
		"/":                  {200, "host1-vm1\n"},
		"/healthz":           {200, "ok\n"},
		"/bytes/0":           {200, ""},
		"/bytes/-1":          {400, "bytes: \"-1\": must be 0 to 1099511627776\n"},
		"/bytes/x":           {400, "bytes: \"x\": must be 0 to 1099511627776\n"},
		"/bytes/5?every=1ns": {200, "\x00\x01\x02\x03\x04"},
		"/bytes/5?every=-1s": {400, "every: \"-1s\": must be 0s to 1m\n"},
		"/push?after=2h":     {400, "after: \"2h\": must be 0s to 1h0m0s\n"},
		"/work?for=1ms":      {200, "done\n"},
		"/work?for=2m":       {400, "for: \"2m\": must be 0s to 1m0s\n"},
		"/nothing":           {404, "404 page not found\n"},
	} {
		response, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != want.status || string(body) != want.body {
			t.Errorf("GET %s = %d %q, %v; want %d %q", path, response.StatusCode, body, err, want.status, want.body)
		}
	}
}

// Lengths around the size of a single write.
func TestBytesFollowThePattern(t *testing.T) {
	server := httptest.NewServer(webHandler("vm"))
	defer server.Close()
	for _, n := range []string{"1", "250", "251", "252", "262043", "262044", "262045", "1000000", "65536?every=1ns"} {
		response, err := http.Get(server.URL + "/bytes/" + n)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		n, _, _ := strings.Cut(n, "?")
		if got := response.Header.Get("Content-Length"); got != n {
			t.Errorf("/bytes/%s: content length %s", n, got)
		}
		for i, b := range body {
			if b != PatternByte(int64(i)) {
				t.Fatalf("/bytes/%s: byte %d is %d, want %d", n, i, b, PatternByte(int64(i)))
			}
		}
		if got := len(body); strconv.Itoa(got) != n {
			t.Errorf("/bytes/%s: %d bytes", n, got)
		}
	}
}

// A push contains the time at which it was sent.
func TestPush(t *testing.T) {
	server := httptest.NewServer(webHandler("vm"))
	defer server.Close()
	begun := time.Now()
	response, err := http.Get(server.URL + "/push?after=1ms")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	word, at, _ := strings.Cut(string(body), "\n")
	ns, err := strconv.ParseInt(strings.TrimSuffix(at, "\n"), 10, 64)
	if err != nil || word != PushWord || ns < begun.UnixNano() || ns > time.Now().UnixNano() {
		t.Errorf("body is %q (%v)", body, err)
	}
}

// A queue processes one request at a time, in order. Another queue does not wait for it.
func TestWorkQueues(t *testing.T) {
	server := httptest.NewServer(webHandler("host1-vm1"))
	defer server.Close()
	const each = 50 * time.Millisecond
	ask := func(queue string) error {
		answer, err := http.Get(server.URL + "/work?queue=" + queue + "&for=" + each.String())
		if err != nil {
			return err
		}
		answer.Body.Close()
		if !answer.Close {
			t.Error("the connection stays open")
		}
		return nil
	}
	const queued = 5
	ends, errs := make(chan time.Time, 2*queued), make(chan error, 2*queued)
	began := time.Now()
	for range queued {
		go func() {
			errs <- ask("one")
			ends <- time.Now()
		}()
	}
	var all []time.Time
	for range queued {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
		all = append(all, <-ends)
	}
	slices.SortFunc(all, time.Time.Compare)
	for i, end := range all { // none can be sooner, however busy the machine is
		if least := time.Duration(i+1) * each; end.Sub(began) < least {
			t.Errorf("request %d of a queue took %s, want %s or more", i, end.Sub(began), least)
		}
	}
	// While a long request is processed here, another queue continues.
	held := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/work?queue=long&for=1m", nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := http.DefaultClient.Do(request)
		held <- err
	}()
	if err := ask("other"); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-held; err == nil {
		t.Error("a minute's work was done")
	}
}
