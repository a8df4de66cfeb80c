// Package service notifies the service manager that started the process (systemd) of readiness,
// reloads and the watchdog, by sd_notify(3) and systemd.service(5). Without one its functions have
// no effect.
package service

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// Ready reports that the daemon is ready, with a short status.
func Ready(status string) error { return tell(daemon.SdNotifyReady, "STATUS="+oneLine(status)) }

// Status reports a short status of the daemon.
func Status(status string) error { return tell("STATUS=" + oneLine(status)) }

// Reloading reports that a reload began; Ready reports its end. Units of Type=notify-reload need
// the time of the beginning.
func Reloading() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("tell the service manager: read the monotonic clock: %w", err)
	}
	return tell(daemon.SdNotifyReloading, fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000))
}

// Stopping reports that the daemon is stopping.
func Stopping() error { return tell(daemon.SdNotifyStopping) }

// Watchdog reports that the daemon is alive while alive returns nil in time, until ctx ends.
// Without a watchdog (WatchdogSec= of the unit) it only waits. alive gets half of the watchdog's
// time.
func Watchdog(ctx context.Context, alive func(context.Context) error, failed func(error)) error {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("read the watchdog's time: %w", err)
	}
	if limit == 0 {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(limit / 3)
	defer tick.Stop()
	for {
		if err := within(ctx, limit/2, alive); err != nil {
			failed(err)
		} else if err := tell(daemon.SdNotifyWatchdog); err != nil {
			failed(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// within returns an error if f does not return in time, so that a function that hangs is detected.
func within(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("no sign of life within %v: %w", limit, ctx.Err())
	}
}

// tell sends assignments in one datagram.
func tell(lines ...string) error {
	if _, err := daemon.SdNotify(false, strings.Join(lines, "\n")); err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	return nil
}

// oneLine prevents a text from being parsed as further assignments.
func oneLine(s string) string { return strings.NewReplacer("\n", "; ", "\r", " ").Replace(s) }
