package lab_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

const (
	nginxPort = 8088
	// nginxBytes is the length of /pattern.
	nginxBytes = 4 << 20
)

// nginxConfig is the configuration of a server on a VM. It serves its name, /pattern, the same
// slowly as /slow/pattern, uploads below /put/, and /push of the lab's server.
const nginxConfig = `daemon off;
user root;
worker_processes 1;
pid %[1]s/%[2]s.pid;
error_log %[1]s/%[2]s.log;
events { worker_connections 1024; }
http {
  access_log off;
  client_max_body_size 0;
  keepalive_timeout 900s;
  keepalive_requests 1000000;
  client_body_temp_path %[1]s/%[2]s.body;
  proxy_temp_path %[1]s/%[2]s.proxy;
  fastcgi_temp_path %[1]s/%[2]s.fastcgi;
  uwsgi_temp_path %[1]s/%[2]s.uwsgi;
  scgi_temp_path %[1]s/%[2]s.scgi;
  server {
    listen %[3]d;
    listen [::]:%[3]d;
    location = / { return 200 "%[2]s\n"; }
    location = /pattern { root %[1]s; }
    location /slow/ { alias %[1]s/; limit_rate 1m; }
    location /put/ { root %[1]s; dav_methods PUT; create_full_put_path on; }
    location = /push { proxy_pass http://127.0.0.1:%[4]d; proxy_buffering off; proxy_read_timeout 900s; }
  }
}
`

// startNginx runs an unmodified nginx on VMs until the test ends, and returns the directory of
// uploads.
func startNginx(t *testing.T, vms ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	var pattern bytes.Buffer
	if _, err := io.CopyN(&pattern, &patternReader{}, nginxBytes); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "pattern"), pattern.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, vm := range vms {
		config := filepath.Join(dir, vm+".conf")
		if err := os.WriteFile(config, fmt.Appendf(nil, nginxConfig, dir, vm, nginxPort, lab.ServerPort), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := shared.Command("nginx", "-c", config, "-e", filepath.Join(dir, vm+".log"))
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := shared.StartOn(vm, cmd); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			// Its worker ends with it.
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err != nil || said.Len() > 0 {
				t.Logf("nginx on %s: %v: %s", vm, err, said.String())
			}
		})
		address := netip.AddrPortFrom(dipOf(t, vm), nginxPort).String()
		await(t, "nginx on "+vm, func(ctx context.Context) error {
			conn, err := netdev.Dialer(inNode(vm))(ctx, "tcp", address)
			if err == nil {
				conn.Close()
			}
			return err
		})
	}
	return dir
}

// visitPort is the port of the last visit. Ports of visits to VIPs and to DIPs behind them must
// differ.
var visitPort atomic.Int32

const (
	// visitPatience bounds the waits of a visitor. It allows for retransmissions.
	visitPatience = 2 * time.Minute
)

// visit is a connection from client1 to nginx. Its client sends no keep-alives.
type visit struct {
	conn    net.Conn
	answers *bufio.Reader
	port    int
}

// freshPort returns a port that no other visit and no other connection of client1 uses.
func freshPort() int {
	port := lab.FirstNamedPort + int(visitPort.Add(1))
	if port > lab.LastNamedPort {
		panic(fmt.Sprintf("port %d of a visit is not reserved", port))
	}
	return port
}

// TestNamedPorts checks that client1's kernel assigns no port of visits to other connections, so
// that a visit can always bind its own.
func TestNamedPorts(t *testing.T) {
	dial := func(first, last uint32) error {
		d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
			control := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_LOCAL_PORT_RANGE, int(last<<16|first))
			})
			return errors.Join(control, err)
		}}
		return netdev.In(client1(), func() error {
			_, err := d.Dial("tcp", "127.0.0.1:1")
			return err
		})
	}
	if err := dial(lab.FirstNamedPort, lab.LastNamedPort); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("from a port that visits name: %v, want %v", err, syscall.EADDRNOTAVAIL)
	}
	if err := dial(lab.LastNamedPort+1, lab.LastNamedPort+100); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("from another port: %v, want %v", err, syscall.ECONNREFUSED)
	}
}

// openVisit connects to a target from a port. 0 means a fresh port.
func openVisit(target string, port int) (*visit, error) {
	v := &visit{port: port}
	if port == 0 {
		v.port = freshPort()
	}
	d := net.Dialer{FallbackDelay: -1, KeepAlive: -1, Timeout: visitPatience, LocalAddr: &net.TCPAddr{Port: v.port}, Control: func(_, _ string, raw syscall.RawConn) (err error) {
		control := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
		return errors.Join(control, err)
	}}
	err := netdev.In(client1(), func() (err error) {
		v.conn, err = d.Dial("tcp", target)
		return err
	})
	if err != nil {
		return nil, err
	}
	v.answers = bufio.NewReaderSize(v.conn, 64<<10)
	return v, nil
}

// visits is openVisit, but fails the test on an error. It closes the visit when the test ends.
func visits(t *testing.T, target string) *visit {
	t.Helper()
	v, err := openVisit(target, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.conn.Close() })
	return v
}

// do sends a request and copies the body of its response, which may take longer by besides.
func (v *visit) do(method, path string, body []byte, to io.Writer, besides time.Duration, headers ...string) error {
	if err := v.conn.SetDeadline(time.Now().Add(besides + visitPatience)); err != nil {
		return err
	}
	request := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: lab\r\nContent-Length: %d\r\n", method, path, len(body))
	for _, h := range headers {
		request += h + "\r\n"
	}
	if _, err := v.conn.Write(append([]byte(request+"\r\n"), body...)); err != nil {
		return err
	}
	answer, err := http.ReadResponse(v.answers, &http.Request{Method: method})
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 != 2 {
		return errors.New(answer.Status)
	}
	_, err = io.Copy(to, answer.Body)
	return err
}

// name requests the name of the server.
func (v *visit) name() (string, error) {
	var b bytes.Buffer
	err := v.do("GET", "/", nil, &b, 0)
	return strings.TrimSpace(b.String()), err
}

// download fetches the pattern from a path.
func (v *visit) download(path string) error {
	check := &patternChecker{}
	if err := v.do("GET", path, nil, check, 0); err != nil {
		return err
	}
	if check.bad || check.at != nginxBytes {
		return fmt.Errorf("%d bytes of %d, wrong %v at %d", check.at, nginxBytes, check.bad, check.wrong)
	}
	return nil
}

// upload uploads the pattern and checks the stored file.
func (v *visit) upload(dir string) error {
	pattern, err := os.ReadFile(filepath.Join(dir, "pattern"))
	if err != nil {
		return err
	}
	path := fmt.Sprintf("/put/%d", v.port)
	if err := v.do("PUT", path, pattern, io.Discard, 0); err != nil {
		return err
	}
	got, err := os.ReadFile(filepath.Join(dir, path))
	if err == nil && !bytes.Equal(got, pattern) {
		err = fmt.Errorf("%d bytes of %d, or others", len(got), len(pattern))
	}
	return err
}

// pushed requests a push of the server after a silence.
func (v *visit) pushed(after time.Duration) error {
	var b bytes.Buffer
	err := v.do("GET", "/push?after="+after.String(), nil, &b, after)
	if err == nil && len(strings.Fields(b.String())) != 2 {
		err = fmt.Errorf("pushed was %q", b.String())
	}
	return err
}

// serverSide returns the output of ss for the connection at a server.
func (v *visit) serverSide(vm string) (string, error) {
	var out []byte
	err := netdev.In(inNode(vm), func() (err error) {
		out, err = exec.Command("ss", "-tinoHO", "state", "established", fmt.Sprintf("( sport = :%d and dport = :%d )", nginxPort, v.port)).CombinedOutput()
		return err
	})
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		return "", fmt.Errorf("ss on %s: %q: %w", vm, out, cmp.Or(err, errors.New("no such connection")))
	}
	return string(out), nil
}
