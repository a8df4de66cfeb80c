package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/load"
)

// MaxSocketPath is the longest path of a socket in bytes (unix(7)).
const MaxSocketPath = 107

const (
	// loadSocketName is that of the socket in the run directory, where none is named.
	loadSocketName = "load.sock"
	// maxSpeakers bounds the connections to it.
	maxSpeakers = 1024
	// speakerPatience is how long an answer may wait for a speaker that does not read.
	speakerPatience = time.Second
)

// loadSocket takes what applications of this machine say of their load: lines of a server and a number, each answered with "ok", or with
// "error: " and why not (docs/ops/load.md).
type loadSocket struct {
	listener *net.UnixListener
	given    *given
}

// openLoadSocket listens at a path, in the place of a socket that was left there. Its directory is made when it is missing; group and
// owner may write to it, the kernel lets nobody else.
func openLoadSocket(path string, g *given) (*loadSocket, error) {
	if len(path) > MaxSocketPath {
		return nil, fmt.Errorf("load socket %s: its path must be at most %d bytes", path, MaxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return nil, fmt.Errorf("make directory of the load socket: %w", err)
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("load socket: %w", err)
	case info.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("load socket %s: there is something that is no socket", path)
	default:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("load socket: %w", err)
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("load socket: %w", err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		l.Close()
		return nil, fmt.Errorf("load socket: %w", err)
	}
	return &loadSocket{l, g}, nil
}

// serve answers until ctx ends, and closes the socket.
func (s *loadSocket) serve(ctx context.Context) error {
	var speakers sync.WaitGroup
	defer speakers.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(ctx, func() { s.listener.Close() })()
	room := make(chan struct{}, maxSpeakers)
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("load socket: %w", err)
		}
		select {
		case room <- struct{}{}:
		default:
			answer(conn, fmt.Errorf("too many connections: at most %d", maxSpeakers)) //nolint:errcheck // it is closed anyway
			conn.Close()
			continue
		}
		speakers.Go(func() {
			defer func() { <-room }()
			s.listen(ctx, conn)
		})
	}
}

// listen takes in lines until their end, or one that is too long.
func (s *loadSocket) listen(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	lines := bufio.NewReaderSize(conn, load.MaxWords)
	for {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			answer(conn, fmt.Errorf("line: must be at most %d bytes", load.MaxWords-1)) //nolint:errcheck // it is closed anyway
			return
		case errors.Is(err, io.EOF) && len(line) > 0:
		case err != nil:
			return
		}
		said, fault := load.ParseSaid(string(line))
		if fault == nil {
			fault = s.given.say(said)
		}
		if answer(conn, fault) != nil || err != nil {
			return
		}
	}
}

// answer says what came of a line.
func answer(conn *net.UnixConn, fault error) error {
	text := "ok\n"
	if fault != nil {
		text = "error: " + fault.Error() + "\n"
	}
	if err := conn.SetWriteDeadline(time.Now().Add(speakerPatience)); err != nil {
		return err
	}
	_, err := io.WriteString(conn, text)
	return err
}
