package loop

import (
	"bufio"
	"bytes"
	"net/http"
	"strings"
	"testing"
)

// FuzzHead compares parseHead with net/http, for heads cut at any place.
func FuzzHead(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.0 404 Not Found\nServer: x\n\n", "HTTP/1.1 200\r\nA: b\r\n c\r\n\r\nbody", "HTTP/2.0 200 OK\r\n\r\n",
		"HTTP/1.1 20 X\r\n\r\n", "HTTP/1.1 2x0 X\r\n\r\n", "HTTP/1.1\r\n\r\n", "SSH-2.0-x\r\n\r\n", "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", "",
		"HTTP/1.1 503  \r\n\r\n", "HTTP/1.1  200 OK\r\n\r\n", "HTTP/1.x 200 OK\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		status, done, fault := parseHead(b)
		if done && fault != "" || len(fault) > 500 || strings.Contains(fault, "\n") {
			t.Fatalf("done %v, fault %q", done, fault)
		}
		r, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b)), nil)
		switch {
		case err == nil && r.ProtoMajor == 1 && r.StatusCode/100 != 1 && r.StatusCode != 0 && !(done && status == r.StatusCode):
			t.Errorf("%q: net/http says %d, this %d, done %v, %q", b, r.StatusCode, status, done, fault)
		case err == nil && r.ProtoMajor != 1 && done:
			t.Errorf("%q: HTTP/%d is taken", b, r.ProtoMajor)
		}
		for i := range b {
			if s, cut, why := parseHead(b[:i]); cut && (s != status || !done) || why != "" && (done || fault == "") && !(done && status == s) {
				t.Errorf("%q: cut at %d it is %d, %v, %q; whole %d, %v, %q", b, i, s, cut, why, status, done, fault)
			}
		}
	})
}
