package bench

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/netdev"
)

// connectWorkers open connections in parallel.
const connectWorkers = 8

// connectPatience bounds each step of a connection, in seconds.
const connectPatience = 5

// serveConnects sends one byte on each connection and closes it.
func serveConnects(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = conn.Write([]byte{'.'}) // the client counts failures
			conn.Close()
		}()
	}
}

// connects opens connections one after the other for a time, each until its first byte, and returns
// the number per second.
func (s *hostStage) connects(to netip.AddrPort, duration time.Duration) (perSecond float64, failures int, err error) {
	var (
		mu    sync.Mutex
		made  int
		errs  []error
		group sync.WaitGroup
	)
	start := time.Now()
	for range connectWorkers {
		group.Go(func() {
			own, failed := 0, 0
			err := netdev.In(s.client, func() error {
				for time.Since(start) < duration {
					if err := connectOnce(to); err != nil {
						failed++
						if failed > 100 {
							return fmt.Errorf("connect to %s: %w", to, err)
						}
						continue
					}
					own++
				}
				return nil
			})
			mu.Lock()
			defer mu.Unlock()
			made, failures, errs = made+own, failures+failed, append(errs, err)
		})
	}
	group.Wait()
	return float64(made) / time.Since(start).Seconds(), failures, errors.Join(errs...)
}

// connectOnce opens a connection from the current namespace, reads a byte and resets the
// connection, so that its ports are free immediately.
func connectOnce(to netip.AddrPort) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	patience := unix.Timeval{Sec: connectPatience}
	for _, err := range []error{
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: stageClient.As4()}),
		unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}),
	} {
		if err != nil {
			return err
		}
	}
	var b [1]byte
	n, err := unix.Read(fd, b[:])
	if err == nil && n != 1 {
		err = errors.New("closed without an answer")
	}
	return err
}
