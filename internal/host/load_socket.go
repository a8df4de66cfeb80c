package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/lock"
	"github.com/shuntlb/shunt/internal/socket"
)

// MaxSocketPath is the longest path of a socket in bytes.
const MaxSocketPath = socket.MaxPath

const (
	// loadSocketName is the default name of the socket, in the run directory.
	loadSocketName = "load.sock"
	// maxSpeakers bounds the connections to it.
	maxSpeakers = 1024
	// speakerPatience is how long a reply may wait for a client that does not read.
	speakerPatience = time.Second
)

// loadSocket receives the load of this machine's applications: lines of a server and a number. Each
// is answered with "ok", or with "error: " and the reason (docs/ops/load.md).
type loadSocket struct {
	listener *socket.Listener
	given    *given
	log      *slog.Logger
	// locks are maintained together with the socket.
	locks []*lock.File
}

// openLoadSocket listens at a path, and replaces a socket that was left there. It creates the
// directory if it is missing. Group and owner may write to the socket; the kernel refuses others.
func openLoadSocket(path string, g *given, log *slog.Logger, locks []*lock.File) (*loadSocket, error) {
	l, err := socket.Listen(socket.Options{Path: path, Mode: 0o660, Directory: 0o711})
	if err != nil {
		return nil, fmt.Errorf("load socket: %w", err)
	}
	return &loadSocket{l, g, log, locks}, nil
}

// serve answers until ctx ends, and closes the socket. It restores the socket if its path is
// removed.
func (s *loadSocket) serve(ctx context.Context) error {
	var speakers sync.WaitGroup
	defer speakers.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(ctx, func() { s.listener.Close() })()
	var keepers []func() (restored bool, err error)
	for _, l := range s.locks {
		keepers = append(keepers, l.Tend)
	}
	go s.listener.Keep(ctx, clock.System{}, s.log, keepers...)
	room := make(chan struct{}, maxSpeakers)
	for {
		conn, err := s.listener.Accept()
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

// listen reads lines until the end of the connection, or a line that is too long.
func (s *loadSocket) listen(ctx context.Context, conn net.Conn) {
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

// answer writes the reply to a line.
func answer(conn net.Conn, fault error) error {
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
