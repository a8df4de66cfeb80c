package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// MaxBytes is the longest body that GET /bytes/N sends.
const MaxBytes = 1 << 40

// pattern is the repeated content of bodies of /bytes/N: byte i of a body is i modulo 251. Its
// length is a multiple of 251 near 256 KiB, so that one write fills a socket buffer.
var pattern = func() []byte {
	p := make([]byte, 251*1044)
	for i := range p {
		p[i] = PatternByte(int64(i))
	}
	return p
}()

// PatternByte returns byte i of the body of /bytes/N.
func PatternByte(i int64) byte { return byte(i % 251) }

// Serve runs a lab server until the context ends: HTTP on ServerPort and echo on EchoPort over TCP
// and UDP, on every address of the machine. Responses leave from the requested address, so a VIP on
// the loopback works.
func Serve(ctx context.Context, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	web, err := net.Listen("tcp", fmt.Sprintf(":%d", ServerPort))
	if err != nil {
		return fmt.Errorf("serve http: %w", err)
	}
	echo, err := net.Listen("tcp", fmt.Sprintf(":%d", EchoPort))
	if err != nil {
		return fmt.Errorf("serve echo over tcp: %w", err)
	}
	errs := make(chan error, 4)
	var datagrams []*net.UDPConn
	for _, network := range []string{"udp4", "udp6"} {
		conn, err := listenUDP(network, EchoPort)
		if err != nil {
			return fmt.Errorf("serve echo over %s: %w", network, err)
		}
		datagrams = append(datagrams, conn)
		go func() { errs <- echoUDP(conn) }()
	}
	server := &http.Server{Handler: webHandler(name), ReadHeaderTimeout: 10 * time.Second}
	go func() { errs <- server.Serve(web) }()
	go func() { errs <- echoTCP(echo) }()
	select {
	case <-ctx.Done():
		err = nil
	case err = <-errs:
	}
	echo.Close()
	server.Close()
	for _, conn := range datagrams {
		conn.Close()
	}
	return err
}

// slowChunk is the size of each write of a paced /bytes/N.
const slowChunk = 16 << 10

// webHandler serves / with the server's name, /healthz, /load with the value put there last,
// initially 0, and /bytes/N with N bytes, or with slowChunk of them in each interval (?every=5ms),
// and the server's name as Server. See push and work for /push and /work.
func webHandler(name string) http.Handler {
	mux := http.NewServeMux()
	var load atomic.Value
	load.Store("0\n")
	mux.HandleFunc("GET /load", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, load.Load().(string)) })
	mux.HandleFunc("PUT /load", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		load.Store(string(body))
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name+"\n") })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /push", push)
	mux.HandleFunc("GET /work", new(workQueues).work)
	mux.HandleFunc("GET /bytes/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
		if err != nil || n < 0 || n > MaxBytes {
			http.Error(w, fmt.Sprintf("bytes: %q: must be 0 to %d", r.PathValue("n"), int64(MaxBytes)), http.StatusBadRequest)
			return
		}
		every, err := time.ParseDuration(cmp.Or(r.FormValue("every"), "0s"))
		if err != nil || every < 0 || every > time.Minute {
			http.Error(w, fmt.Sprintf("every: %q: must be 0s to 1m", r.FormValue("every")), http.StatusBadRequest)
			return
		}
		w.Header().Set("Server", name)
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		sendPattern(r.Context(), w, n, every)
	})
	return mux
}

// sendPattern writes n bytes of the pattern until the client is gone, without pause or a chunk in
// each interval.
func sendPattern(ctx context.Context, w http.ResponseWriter, n int64, every time.Duration) {
	most := int64(len(pattern))
	if every > 0 {
		most = slowChunk
	}
	for at := int64(0); at < n; {
		length := min(n-at, most)
		start := at % 251
		length = min(length, int64(len(pattern))-start)
		if _, err := w.Write(pattern[start : start+length]); err != nil {
			return
		}
		at += length
		if every == 0 {
			continue
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return
		}
	}
}

func echoTCP(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("serve echo over tcp: %w", err)
		}
		go func() {
			defer conn.Close()
			io.Copy(conn, conn)
		}()
	}
}

// echoUDP sends every datagram back from the address that it was sent to: it returns the received
// packet information without the device, and its address becomes the source.
func echoUDP(conn *net.UDPConn) error {
	buf, oob := make([]byte, 64<<10), make([]byte, 128)
	for {
		n, oobn, _, from, err := conn.ReadMsgUDPAddrPort(buf, oob)
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			if isTemporary(err) {
				continue
			}
			return fmt.Errorf("serve echo over udp: %w", err)
		}
		forgetDevice(oob[:oobn])
		// Ignore errors of a client that is gone.
		_, _, _ = conn.WriteMsgUDPAddrPort(buf[:n], oob[:oobn], from)
	}
}

// isTemporary reports whether an ICMP message for an earlier reply caused the error.
func isTemporary(err error) bool {
	return strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "unreachable")
}
