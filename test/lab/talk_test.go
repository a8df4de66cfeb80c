package lab_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// talk sends messages over connections to an echo service repeatedly until it is ended.
type talk struct {
	conns  connections
	stop   chan struct{}
	done   sync.WaitGroup
	broken map[int]error // read after end
}

// talk starts. Broken connections stay broken.
func (c connections) talk() *talk {
	k := &talk{conns: c, stop: make(chan struct{}), broken: map[int]error{}}
	k.done.Go(func() {
		tick := time.NewTicker(keptEvery)
		defer tick.Stop()
		for n := 0; ; n++ {
			k.round(n)
			select {
			case <-k.stop:
				return
			case <-tick.C:
			}
		}
	})
	return k
}

// round sends a message over every connection and then waits for all echoes.
func (k *talk) round(n int) {
	for i, conn := range k.conns {
		if k.broken[i] != nil {
			continue
		}
		err := conn.SetDeadline(time.Now().Add(eventually))
		if err == nil {
			_, err = io.WriteString(conn, said(i, n))
		}
		k.note(i, err)
	}
	for i, conn := range k.conns {
		if k.broken[i] != nil {
			continue
		}
		want := said(i, n)
		got := make([]byte, len(want))
		_, err := io.ReadFull(conn, got)
		if err == nil && string(got) != want {
			err = fmt.Errorf("said %q, heard %q", want, got)
		}
		k.note(i, err)
	}
}

// said returns a different message for each connection and round.
func said(conn, round int) string { return fmt.Sprintf("%d of connection %d\n", round, conn) }

// note records that a connection broke, if it did.
func (k *talk) note(i int, err error) {
	if err != nil {
		k.broken[i] = err
	}
}

// end sends once more over each connection and returns why connections broke.
func (k *talk) end() map[int]error {
	close(k.stop)
	k.done.Wait()
	k.round(-1)
	return k.broken
}

// bulk is a connection to an echo service over which large blocks go both ways all the time.
type bulk struct {
	conn    net.Conn
	stop    chan struct{}
	echoed  atomic.Int64 // bytes
	sent    [sha256.Size]byte
	heard   [sha256.Size]byte
	size    int64
	errs    [2]error
	running sync.WaitGroup
}

// bulkMore is how many bytes count as progress.
const bulkMore = 4 << 20

// bulkBlock is the size of each write of a bulk transfer: several GSO packets.
var bulkBlock = bytes.Repeat([]byte("all of a connection's bytes, in their order. "), 1<<18/45)

// startBulk begins to send and returns when echoes arrive.
func startBulk(t *testing.T, target string) *bulk {
	t.Helper()
	conn, err := dial("tcp", target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(5 * eventually)); err != nil {
		t.Fatal(err)
	}
	b := &bulk{conn: conn, stop: make(chan struct{})}
	b.running.Go(func() { b.errs[0] = b.send() })
	b.running.Go(func() { b.errs[1] = b.hear() })
	b.awaitMore(t)
	return b
}

// send sends numbered blocks, one a tick, and after the stop a last part at full speed.
func (b *bulk) send() error {
	sum := sha256.New()
	tick := time.NewTicker(keptEvery)
	defer tick.Stop()
	block := append([]byte(nil), bulkBlock...)
	rest := int64(4 * bulkMore)
	for n := uint64(0); rest > 0; n++ {
		binary.BigEndian.PutUint64(block, n)
		sum.Write(block)
		m, err := b.conn.Write(block)
		if b.size += int64(m); err != nil {
			return fmt.Errorf("send block %d: %w", n, err)
		}
		select {
		case <-b.stop:
			rest -= int64(m)
		case <-tick.C:
		}
	}
	sum.Sum(b.sent[:0])
	return b.conn.(interface{ CloseWrite() error }).CloseWrite()
}

// hear reads the echo until its end.
func (b *bulk) hear() error {
	sum := sha256.New()
	buf := make([]byte, 1<<17)
	for {
		n, err := b.conn.Read(buf)
		sum.Write(buf[:n])
		b.echoed.Add(int64(n))
		if errors.Is(err, io.EOF) {
			sum.Sum(b.heard[:0])
			return nil
		}
		if err != nil {
			return fmt.Errorf("hear after %d bytes: %w", b.echoed.Load(), err)
		}
	}
}

// awaitMore waits until bulkMore more bytes were echoed.
func (b *bulk) awaitMore(t *testing.T) {
	t.Helper()
	from := b.echoed.Load()
	await(t, "bytes from "+b.conn.RemoteAddr().String(), func(context.Context) error {
		if now := b.echoed.Load(); now < from+bulkMore {
			return fmt.Errorf("%d bytes, %d before", now, from)
		}
		return nil
	})
}

// end sends a last part at full speed and compares all sent data with the echo.
func (b *bulk) end(t *testing.T) {
	t.Helper()
	close(b.stop)
	b.running.Wait()
	for _, err := range b.errs {
		if err != nil {
			t.Errorf("%s: %v", b.conn.RemoteAddr(), err)
		}
	}
	t.Logf("%s: %d bytes each way", b.conn.RemoteAddr(), b.size)
	if n := b.echoed.Load(); n != b.size || b.sent != b.heard {
		t.Errorf("%s: sent %d bytes, %d came back, the same: %v", b.conn.RemoteAddr(), b.size, n, b.sent == b.heard)
	}
}
