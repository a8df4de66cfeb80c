package bench

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/shuntlb/shunt/internal/netdev"
)

// Directions of a bulk transfer: the first byte that the client writes.
const (
	bulkDown = byte('d') // the server sends until the client closes
	bulkUp   = byte('u') // the client sends, then reads how much the server received
)

// bulkBuffer is the size of each read and write.
const bulkBuffer = 1 << 20

// bulkPatience bounds every step of a transfer in addition to its duration.
const bulkPatience = 30 * time.Second

// serveBulk serves transfers until the listener is closed.
func serveBulk(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			// The client reports the failure.
			_ = serveTransfer(conn)
		}()
	}
}

// serveTransfer replies to the first byte of a connection, which shows that it is established, then
// transfers.
func serveTransfer(conn net.Conn) error {
	var way [2]byte
	if _, err := io.ReadFull(conn, way[:1]); err != nil {
		return err
	}
	if _, err := conn.Write(way[:1]); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, way[1:]); err != nil {
		return err
	}
	buf := make([]byte, bulkBuffer)
	if way[0] == bulkDown {
		for {
			if _, err := conn.Write(buf); err != nil {
				return err
			}
		}
	}
	got := uint64(1) // the second byte
	for {
		n, err := conn.Read(buf)
		got += uint64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	_, err := conn.Write(binary.BigEndian.AppendUint64(nil, got))
	return err
}

// bulkTurn is one transfer. The connection is established through host `through`, and continues
// through host `then` if that differs.
type bulkTurn struct {
	to            netip.AddrPort
	through, then int
	way           byte
	duration      time.Duration
}

// transfer makes one transfer and returns its bits per second.
func (s *hostStage) transfer(ctx context.Context, b bulkTurn) (bps float64, err error) {
	if err := s.aim(b.through); err != nil {
		return 0, err
	}
	conn, err := s.dial(ctx, b.to)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetLinger(0); err != nil {
		return 0, err
	}
	if err := conn.SetDeadline(time.Now().Add(b.duration + bulkPatience)); err != nil {
		return 0, err
	}
	opening := []byte{b.way}
	if _, err := conn.Write(opening); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(conn, opening); err != nil {
		return 0, fmt.Errorf("%s does not answer: %w", b.to, err)
	}
	if err := s.aim(b.then); err != nil {
		return 0, err
	}
	if b.way == bulkDown {
		return download(conn, b.duration)
	}
	return upload(conn, b.duration)
}

// download requests data and reads it for a time.
func download(conn *net.TCPConn, duration time.Duration) (float64, error) {
	if _, err := conn.Write([]byte{bulkDown}); err != nil {
		return 0, err
	}
	buf, got := make([]byte, bulkBuffer), 0
	start := time.Now()
	for time.Since(start) < duration {
		n, err := conn.Read(buf)
		got += n
		if err != nil {
			return 0, err
		}
	}
	return float64(8*got) / time.Since(start).Seconds(), nil
}

// upload sends data for a time, until the server has it all.
func upload(conn *net.TCPConn, duration time.Duration) (float64, error) {
	buf, sent := make([]byte, bulkBuffer), uint64(0)
	start := time.Now()
	for time.Since(start) < duration {
		n, err := conn.Write(buf)
		sent += uint64(n)
		if err != nil {
			return 0, err
		}
	}
	if err := conn.CloseWrite(); err != nil {
		return 0, err
	}
	var count [8]byte
	if _, err := io.ReadFull(conn, count[:]); err != nil {
		return 0, err
	}
	took := time.Since(start).Seconds()
	if got := binary.BigEndian.Uint64(count[:]); got != sent {
		return 0, fmt.Errorf("%s got %d bytes of %d", conn.RemoteAddr(), got, sent)
	}
	return float64(8*sent) / took, nil
}

// received counts the data that a device of a namespace received.
type received struct{ bytes, packets uint64 }

// receivedBy reads a device's counters. GSO packets count once.
func receivedBy(namespace, device string) (r received, err error) {
	err = netdev.In(namespace, func() error {
		file, err := os.Open("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			name, rest, ok := strings.Cut(lines.Text(), ":")
			fields := strings.Fields(rest)
			if !ok || strings.TrimSpace(name) != device || len(fields) < 2 {
				continue
			}
			if r.bytes, err = strconv.ParseUint(fields[0], 10, 64); err == nil {
				r.packets, err = strconv.ParseUint(fields[1], 10, 64)
			}
			return err
		}
		return fmt.Errorf("read counters of %s: no such device", device)
	})
	return r, err
}
