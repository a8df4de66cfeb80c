package socket

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
)

// listening returns a Listener that echoes the bytes of each connection, until the test ends.
func listening(t *testing.T) (l *Listener, path string) {
	t.Helper()
	// A unix socket's path has at most 107 bytes.
	dir, err := os.MkdirTemp("", "sock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path = filepath.Join(dir, "shunt", "run", "own.sock")
	if l, err = Listen(Options{Path: path, Mode: 0o640, Directory: 0o711}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go io.Copy(conn, conn)
		}
	}()
	return l, path
}

// dial connects to the socket at path.
func dial(t *testing.T, path string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// echoes fails the test unless the connection echoes.
func echoes(t *testing.T, conn net.Conn) {
	t.Helper()
	answer := make([]byte, 5)
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "hello" {
		t.Fatalf("answer %q, %v", answer, err)
	}
}

// TestSocketIsRestored: Tend creates the socket again, with its mode, after any change of the path,
// and connections stay.
func TestSocketIsRestored(t *testing.T) {
	for name, harm := range map[string]func(path string) error{
		"the file is removed":              os.Remove,
		"its directory is removed":         func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
		"that above it is removed":         func(path string) error { return os.RemoveAll(filepath.Dir(filepath.Dir(path))) },
		"it is moved away":                 func(path string) error { return os.Rename(path, path+".old") },
		"another process has its path":     steal,
		"a process that died had its path": func(path string) error { return stolenAndDead(path) },
		"its directory is another, and new": func(path string) error {
			if err := os.Rename(filepath.Dir(path), filepath.Dir(path)+".old"); err != nil {
				return err
			}
			return os.Mkdir(filepath.Dir(path), 0o711)
		},
	} {
		l, path := listening(t)
		before := dial(t, path)
		echoes(t, before)
		if restored, err := l.Tend(); restored || err != nil {
			t.Fatalf("%s: before it: restored %v, %v", name, restored, err)
		}
		if err := harm(path); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if restored, err := l.Tend(); !restored || err != nil {
			t.Fatalf("%s: restored %v, %v", name, restored, err)
		}
		echoes(t, before)
		echoes(t, dial(t, path))
		if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
		if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o711 {
			t.Errorf("%s: mode of the directory %v, %v", name, info.Mode(), err)
		}
		if info, err := os.Stat(filepath.Dir(filepath.Dir(path))); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: mode of the directory above it %v, %v", name, info.Mode(), err)
		}
		if restored, err := l.Tend(); restored || err != nil {
			t.Errorf("%s: after it: restored %v, %v", name, restored, err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s: the socket is left after its end: %v", name, err)
		}
	}
}

// steal places another listener at the path, for the lifetime of the process.
func steal(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		other.SetUnlinkOnClose(false)
	}
	return err
}

func stolenAndDead(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	other.SetUnlinkOnClose(false)
	return other.Close()
}

// TestForeignFilesStay: a file that is not a socket is never removed, and closing a listener leaves
// a socket that replaced it.
func TestForeignFilesStay(t *testing.T) {
	l, path := listening(t)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("socket %s: there is something that is no socket", path)
	if restored, err := l.Tend(); restored || err == nil || err.Error() != want {
		t.Errorf("restored %v, %v, want %s", restored, err, want)
	}
	if _, err := Listen(Options{Path: path, Mode: 0o600, Directory: 0o700}); err == nil || err.Error() != want {
		t.Errorf("listen: %v, want %s", err, want)
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "precious" {
		t.Errorf("the file has %q, %v", content, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	dial(t, path)
	if restored, err := l.Tend(); restored || err != nil {
		t.Errorf("a closed one: restored %v, %v", restored, err)
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("x", MaxPath))
	if _, err := Listen(Options{Path: long, Mode: 0o600, Directory: 0o700}); err == nil || !strings.Contains(err.Error(), "must be at most 107 bytes") {
		t.Errorf("a long path: %v", err)
	}
}

// text collects a log.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *text) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *text) count(s string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Count(w.b.String(), s)
}

// TestKeep: Keep restores the socket and the files of the other functions, in their order, and logs
// a fault once while it lasts.
func TestKeep(t *testing.T) {
	l, path := listening(t)
	c, log := clock.NewFake(time.Unix(1000, 0)), &text{}
	ctx, cancel := context.WithCancel(t.Context())
	fault := fmt.Errorf("no space left on device")
	ended := make(chan struct{})
	var broken error
	go func() {
		defer close(ended)
		l.Keep(ctx, c, slog.New(slog.NewTextHandler(log, nil)), func() (bool, error) { return false, broken })
	}()
	// tick returns after another pass of Keep, so that broken is not read concurrently.
	tick := func() {
		t.Helper()
		for c.Waiting() == 0 {
			runtime.Gosched()
		}
		c.Advance(tendInterval)
		for c.Waiting() == 0 {
			runtime.Gosched()
		}
	}
	tick()
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	tick()
	echoes(t, dial(t, path))
	if n := log.count("restored what was removed"); n != 1 {
		t.Errorf("restored %d times", n)
	}
	for range 2 {
		broken = fault
		tick()
		tick()
		broken = nil
		tick()
	}
	if n := log.count("no space left on device"); n != 2 {
		t.Errorf("the fault is logged %d times, want once each time", n)
	}
	cancel()
	<-ended
}
