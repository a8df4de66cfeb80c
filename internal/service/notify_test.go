package service

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// socket is a service manager that receives datagrams.
func socket(t *testing.T) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return conn
}

func hear(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := conn.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

func TestNotify(t *testing.T) {
	conn := socket(t)
	for _, c := range []struct {
		tell func() error
		want string
	}{
		{func() error { return Ready("3 services") }, "READY=1\nSTATUS=3 services"},
		{func() error { return Status("a\nREADY=1") }, "STATUS=a; READY=1"},
		{Stopping, "STOPPING=1"},
	} {
		if err := c.tell(); err != nil {
			t.Fatal(err)
		}
		if got := hear(t, conn); got != c.want {
			t.Errorf("told %q, want %q", got, c.want)
		}
	}
	if err := Reloading(); err != nil {
		t.Fatal(err)
	}
	at, found := strings.CutPrefix(hear(t, conn), "RELOADING=1\nMONOTONIC_USEC=")
	if usec, err := strconv.ParseInt(at, 10, 64); !found || err != nil || usec <= 0 {
		t.Errorf("reloading told %q", at)
	}
}

// TestNobodyListens: without a service manager nothing is sent, and the watchdog only waits.
func TestNobodyListens(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	os.Unsetenv("WATCHDOG_USEC")
	if err := errors.Join(Ready("x"), Reloading(), Stopping()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := Watchdog(ctx, func(context.Context) error { t.Error("asked without a watchdog"); return nil }, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWatchdog: notifications are sent while the daemon is alive, and stop when it fails or hangs.
func TestWatchdog(t *testing.T) {
	conn := socket(t)
	// a healthy daemon has half of it to respond, also on a busy machine
	t.Setenv("WATCHDOG_USEC", "3000000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	faults := make(chan error, 100)
	var turn atomic.Int32 // Watchdog continues after a call that hangs
	done := make(chan error, 1)
	go func() {
		done <- Watchdog(ctx, func(ctx context.Context) error {
			switch turn.Add(1) {
			case 1:
				return nil
			case 2:
				return errors.New("stuck lock")
			}
			<-make(chan int)
			return nil
		}, func(err error) { faults <- err })
	}()
	if got := hear(t, conn); got != "WATCHDOG=1" {
		t.Fatalf("told %q", got)
	}
	if err := <-faults; err.Error() != "stuck lock" {
		t.Fatalf("failed with %v", err)
	}
	if err := <-faults; !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("failed with %v", err)
	}
	if err := conn.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 100)); err == nil {
		t.Fatalf("%d bytes were told after the daemon hung", n)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
