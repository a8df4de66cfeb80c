package host

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/netdev"
)

// patience is how long a test waits for an event that should be immediate.
const patience = 30 * time.Second

// pattern is the transferred data, repeated; its length divides no segment size.
var pattern = func() []byte {
	b := make([]byte, 65537)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}()

// sendPattern writes n bytes of the pattern.
func sendPattern(w io.Writer, n int) error {
	for n > 0 {
		k, err := w.Write(pattern[:min(n, len(pattern))])
		if err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// readPattern reads n bytes and compares them.
func readPattern(r io.Reader, n int) error {
	buf := make([]byte, len(pattern))
	for done := 0; done < n; {
		want := pattern[:min(n-done, len(pattern))]
		if _, err := io.ReadFull(r, buf[:len(want)]); err != nil {
			return fmt.Errorf("after %d bytes: %w", done, err)
		}
		if !bytes.Equal(buf[:len(want)], want) {
			return fmt.Errorf("wrong bytes between %d and %d", done, done+len(want))
		}
		done += len(want)
	}
	return nil
}

// serve answers TCP requests ('D' or 'U' and a length) and echoes UDP in a namespace until the test
// ends.
func (n *testNet) serve(namespace string, port int) {
	n.t.Helper()
	check(n.t, netdev.In(namespace, func() error {
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			return err
		}
		n.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go serveTCP(c)
			}
		}()
		return nil
	}))
}

func serveTCP(c net.Conn) {
	defer c.Close()
	for {
		var request [9]byte
		if _, err := io.ReadFull(c, request[:]); err != nil {
			return
		}
		size := int(binary.BigEndian.Uint64(request[1:]))
		if request[0] == 'D' {
			if sendPattern(c, size) != nil {
				return
			}
			continue
		}
		verdict := byte('+')
		if readPattern(c, size) != nil {
			verdict = '-'
		}
		if _, err := c.Write([]byte{verdict}); err != nil {
			return
		}
	}
}

// echoUDP echoes in a namespace on one address; answers leave from it.
func (n *testNet) echoUDP(namespace, addr string, port int) {
	n.t.Helper()
	check(n.t, netdev.In(namespace, func() error {
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(addr), Port: port})
		if err != nil {
			return err
		}
		n.t.Cleanup(func() { c.Close() })
		go func() {
			buf := make([]byte, 1<<16)
			for {
				k, from, err := c.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				c.WriteToUDPAddrPort(buf[:k], from)
			}
		}()
		return nil
	}))
}

// dial connects from the client, from a port of its own choice if that is not 0.
func (n *testNet) dial(network, vip string, from int) (c net.Conn) {
	n.t.Helper()
	check(n.t, netdev.In(n.client, func() (err error) {
		d := net.Dialer{FallbackDelay: -1, Timeout: patience, Control: reuse}
		if from != 0 {
			d.LocalAddr = &net.TCPAddr{Port: from}
		}
		c, err = d.DialContext(context.Background(), network, net.JoinHostPort(vip, strconv.Itoa(vipPort)))
		return err
	}))
	n.t.Cleanup(func() { c.Close() })
	check(n.t, c.SetDeadline(time.Now().Add(3*patience)))
	return c
}

// reuse lets two connections have one local port.
func reuse(_, _ string, raw syscall.RawConn) error {
	var err error
	return errors.Join(raw.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}), err)
}

// transfer downloads and uploads size bytes and compares them.
func transfer(c net.Conn, size int) error {
	request := binary.BigEndian.AppendUint64([]byte{'D'}, uint64(size))
	if _, err := c.Write(request); err != nil {
		return err
	}
	if err := readPattern(c, size); err != nil {
		return fmt.Errorf("download: %w", err)
	}
	request[0] = 'U'
	if _, err := c.Write(request); err != nil {
		return err
	}
	if err := sendPattern(c, size); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	var verdict [1]byte
	if _, err := io.ReadFull(c, verdict[:]); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	if verdict[0] != '+' {
		return errors.New("upload: the server got wrong bytes")
	}
	return nil
}

// maxSegment returns the segment size of a connection, including the 12 bytes of the timestamp
// option.
func maxSegment(t *testing.T, c net.Conn) int {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	check(t, err)
	var mss int
	check(t, raw.Control(func(fd uintptr) { mss, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG) }))
	check(t, err)
	return mss + 12
}
