// Package socket keeps a Unix socket at its path, because long-running programs must survive a
// cleanup of /run.
package socket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
)

// MaxPath is the longest path of a socket in bytes (unix(7)).
const MaxPath = 107

// tendInterval is the time between two checks that the socket is at its path.
const tendInterval = time.Second

// Options configures a Listener.
type Options struct {
	// Path is the path of the socket. An existing socket is replaced; the caller holds a lock
	// against a second process.
	Path string
	// Mode is the mode of the socket, Directory that of its directory if it is created. Created
	// parent directories are accessible to all users.
	Mode, Directory os.FileMode
}

// Listener is a net.Listener of a Unix socket. It is safe for concurrent use.
type Listener struct {
	o      Options
	conns  chan net.Conn
	closed chan struct{}

	mu sync.Mutex
	// current is the listening socket, own its file. done: Close was called.
	current *net.UnixListener
	own     os.FileInfo
	done    bool
}

var _ net.Listener = (*Listener)(nil)

// Listen opens a socket. It refuses a path with a file that is not a socket.
func Listen(o Options) (*Listener, error) {
	if len(o.Path) > MaxPath {
		return nil, fmt.Errorf("socket %s: its path must be at most %d bytes", o.Path, MaxPath)
	}
	l := &Listener{o: o, conns: make(chan net.Conn), closed: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.openLocked(); err != nil {
		return nil, err
	}
	return l, nil
}

// openLocked creates the socket and accepts its connections. Connections of the previous socket
// stay.
func (l *Listener) openLocked() error {
	path := l.o.Path
	dir := filepath.Dir(path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(dir), 0o755), os.MkdirAll(dir, l.o.Directory)); err != nil {
		return fmt.Errorf("make directory of the socket: %w", err)
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return fmt.Errorf("look for the socket: %w", err)
	case info.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("socket %s: there is something that is no socket", path)
	default:
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove old socket: %w", err)
		}
	}
	next, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	// Close removes the file itself, if it is still this socket's.
	next.SetUnlinkOnClose(false)
	err = os.Chmod(path, l.o.Mode)
	var own os.FileInfo
	if err == nil {
		own, err = os.Lstat(path)
	}
	if err != nil {
		next.Close()
		return fmt.Errorf("protect socket: %w", err)
	}
	if l.current != nil {
		l.current.Close()
	}
	l.current, l.own = next, own
	go l.accept(next)
	return nil
}

// accept accepts the connections of one socket until it is closed.
func (l *Listener) accept(from *net.UnixListener) {
	for {
		conn, err := from.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// For example, file descriptors are exhausted: retry, because others may be closed
			// meanwhile.
			select {
			case <-time.After(10 * time.Millisecond):
				continue
			case <-l.closed:
				return
			}
		}
		select {
		case l.conns <- conn:
		case <-l.closed:
			conn.Close()
			return
		}
	}
}

// Tend creates the socket again if it is no longer at its path, because it or its directory was
// removed, or another socket replaced it. restored reports that it did. Connections stay.
func (l *Listener) Tend() (restored bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done || l.isOwnLocked() {
		return false, nil
	}
	if err := l.openLocked(); err != nil {
		return false, err
	}
	return true, nil
}

// isOwnLocked reports whether the file at the path is this socket.
func (l *Listener) isOwnLocked() bool {
	found, err := os.Lstat(l.o.Path)
	return err == nil && os.SameFile(l.own, found)
}

// Keep runs Tend, and before it the functions in others for locks and files, until ctx ends. It
// logs restored files, and each fault once.
func (l *Listener) Keep(ctx context.Context, c clock.Clock, log *slog.Logger, others ...func() (restored bool, err error)) {
	fault := ""
	for {
		select {
		case <-c.After(tendInterval):
		case <-ctx.Done():
			return
		}
		var errs []error
		for _, tend := range append(others, l.Tend) {
			restored, err := tend()
			if restored {
				log.Warn("restored what was removed from the run directory", "socket", l.o.Path)
			}
			errs = append(errs, err)
		}
		now := ""
		if err := errors.Join(errs...); err != nil {
			now = err.Error()
		}
		if now != fault && now != "" {
			log.Error("restore the run directory", "socket", l.o.Path, "error", now)
		}
		fault = now
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "accept", Net: "unix", Addr: l.Addr(), Err: net.ErrClosed}
	}
}

// Close implements net.Listener. It removes the socket's file, but no other one at its path.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		return nil
	}
	l.done = true
	close(l.closed)
	if l.isOwnLocked() {
		os.Remove(l.o.Path) //nolint:errcheck // the next process replaces it
	}
	return l.current.Close()
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: l.o.Path, Net: "unix"} }
