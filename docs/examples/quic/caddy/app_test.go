package quic

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	_ "github.com/caddyserver/caddy/v2/modules/filestorage"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/shuntlb/shunt/pkg/quiclb"
)

// within bounds every wait.
const within = time.Minute

// setting is a Caddy on loopback ports.
type setting struct {
	config    string
	addr      *net.UDPAddr
	cert, key string         // PEM
	fields    map[string]any // of the app, beside those that are always there
}

func newSetting(t *testing.T) *setting {
	t.Helper()
	// Where Caddy keeps a number of its own, whatever its storage is.
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"shop.localhost"}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	// An address of this process alone: clients leave from 127.0.0.1 and cannot take its ports.
	free, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 79, byte(os.Getpid()>>8), byte(os.Getpid()))})
	if err != nil {
		t.Fatal(err)
	}
	defer free.Close()
	s := &setting{
		config: filepath.Join(t.TempDir(), "quic.json"),
		addr:   free.LocalAddr().(*net.UDPAddr),
		cert:   string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})),
		key:    string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
	}
	s.file(t, entry(1, 1))
	return s
}

// file writes what connection ids are made of.
func (s *setting) file(t *testing.T, configs ...string) {
	t.Helper()
	if err := os.WriteFile(s.config+".new", []byte(`{"configs":[`+strings.Join(configs, ",")+`]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.config+".new", s.config); err != nil {
		t.Fatal(err)
	}
}

func entry(id int, key byte) string {
	return fmt.Sprintf(`{"id":%d,"format":"quiclb","key":"%s","serverId":"007000","nonceLength":13,"active":true}`, id, strings.Repeat(fmt.Sprintf("%02x", key), 16))
}

func scheme(id uint8, key byte) quiclb.Scheme {
	return quiclb.Scheme{ID: id, Format: quiclb.QUICLB, Key: quiclb.Key(bytes.Repeat([]byte{key}, 16)), ServerIDLength: 3, NonceLength: 13}
}

// load gives Caddy the configuration: what is answered is text, so that a reload shows.
func (s *setting) load(upstream, text string) error {
	app := map[string]any{"server": "web", "listen": s.addr.String(), "config": s.config, "grace": "60s"}
	for name, value := range s.fields {
		app[name] = value
	}
	config, err := json.Marshal(map[string]any{
		"admin":   map[string]any{"disabled": true, "config": map[string]any{"persist": false}},
		"storage": map[string]any{"module": "file_system", "root": filepath.Dir(s.config)},
		"apps": map[string]any{
			"http": map[string]any{"servers": map[string]any{"web": map[string]any{
				"listen": []string{"127.0.0.1:0"}, "protocols": []string{"h1", "h2"}, "automatic_https": map[string]any{"disable": true},
				"tls_connection_policies": []any{map[string]any{}},
				"routes": []any{
					map[string]any{"match": []any{map[string]any{"path": []string{"/bytes"}}}, "handle": []any{map[string]any{
						"handler": "reverse_proxy", "upstreams": []any{map[string]any{"dial": upstream}}}}},
					map[string]any{"match": []any{map[string]any{"host": []string{"shop.localhost"}}}, "handle": []any{map[string]any{"handler": "static_response", "body": text}}},
				},
			}}},
			"tls":        map[string]any{"certificates": map[string]any{"load_pem": []any{map[string]any{"certificate": s.cert, "key": s.key}}}},
			"shunt_quic": app,
		},
	})
	if err != nil {
		return err
	}
	return caddy.Load(config, true)
}

func socket(t *testing.T) *net.UDPConn {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// spy keeps the source connection ids of long headers that a client gets, which are the server's, as a balancer would see them.
type spy struct {
	*net.UDPConn
	ids chan []byte
}

// ReadFrom implements net.PacketConn.
func (s spy) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := s.UDPConn.ReadFrom(b)
	// Flags, version, destination with its length, source with its length (RFC 8999 section 5.1).
	if err == nil && n > 6 && b[0]&0x80 != 0 && n > 6+int(b[5]) {
		rest := b[6+int(b[5]) : n]
		if length := int(rest[0]); length < len(rest) {
			select {
			case s.ids <- bytes.Clone(rest[1 : 1+length]):
			default:
			}
		}
	}
	return n, from, err
}

// client is an HTTP/3 connection.
type client struct {
	conn *quic.Conn
	http *http3.ClientConn
	path *quic.Path
	id   []byte // of the server, the first
}

func connect(t *testing.T, addr *net.UDPAddr) *client {
	t.Helper()
	conn, id := dial(t, addr)
	return &client{conn: conn, http: (&http3.Transport{}).NewClientConn(conn), id: id}
}

// dial also returns the first connection id of the server.
func dial(t *testing.T, addr *net.UDPAddr) (*quic.Conn, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	s := spy{socket(t), make(chan []byte, 64)}
	transport := &quic.Transport{Conn: struct{ net.PacketConn }{s}}
	t.Cleanup(func() { transport.Close() })
	config := &tls.Config{InsecureSkipVerify: true, ServerName: "shop.localhost", NextProtos: []string{"h3"}}
	conn, err := transport.Dial(ctx, addr, config, &quic.Config{MaxIdleTimeout: within})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseWithError(0, "") })
	return conn, <-s.ids
}

// get returns a body that is still to be read.
func (c *client) get(t *testing.T, path string) io.ReadCloser {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://shop.localhost"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.http.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s", path, answer.Status)
	}
	return answer.Body
}

func (c *client) text(t *testing.T, path string) string {
	t.Helper()
	body := c.get(t, path)
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// text is the answer to a request on a connection of its own. One that falls into a reload is repeated on another one: it was rejected, untouched, or this
// client gave its connection up just then, as it was told to (RFC 9114 section 5.2).
func (s *setting) text(t *testing.T) string {
	t.Helper()
	transport := &http3.Transport{Dial: func(context.Context, string, *tls.Config, *quic.Config) (*quic.Conn, error) {
		conn, _ := dial(t, s.addr)
		return conn, nil
	}}
	defer transport.Close()
	for deadline := time.Now().Add(within); ; {
		answer, err := (&http.Client{Transport: transport, Timeout: within}).Get("https://shop.localhost/")
		var text []byte
		if err == nil {
			text, err = io.ReadAll(answer.Body)
			answer.Body.Close()
		}
		var ended *http3.Error
		switch {
		case err == nil:
			return string(text)
		case !errors.As(err, &ended) || ended.ErrorCode != http3.ErrCodeRequestRejected && ended.ErrorCode != http3.ErrCodeNoError || time.Now().After(deadline):
			t.Fatal(err)
		}
	}
}

// move goes on from another port.
func (c *client) move(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	transport := &quic.Transport{Conn: socket(t)}
	t.Cleanup(func() { transport.Close() })
	path, err := c.conn.AddPath(transport)
	if err != nil {
		t.Fatal(err)
	}
	if err := path.Probe(ctx); err != nil {
		t.Fatal(err)
	}
	if err := path.Switch(); err != nil {
		t.Fatal(err)
	}
	if c.path != nil {
		if err := c.path.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c.path = path
}

// names fails the test unless the id is of the scheme and names member 7.
func (c *client) names(t *testing.T, s quiclb.Scheme) {
	t.Helper()
	codec, err := quiclb.NewCodec(s)
	if err != nil {
		t.Fatal(err)
	}
	if id, _, err := codec.Decode(c.id); err != nil || hex.EncodeToString(id) != "007000" {
		t.Fatalf("connection id %x names %x, %v, want 007000", c.id, id, err)
	}
}

// TestCaddy: connection ids name the server under the newest key; a client moves 20 times while it downloads, through a rotation and a reload, without an error.
func TestCaddy(t *testing.T) {
	chunk := make([]byte, 1<<10)
	rand.Read(chunk)
	next := make(chan struct{})
	upstream := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		for range next {
			w.Write(chunk)
			http.NewResponseController(w).Flush()
		}
	})}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go upstream.Serve(ln)
	defer upstream.Close()
	s := newSetting(t)
	s.fields = map[string]any{"retry": true}
	if err := s.load(ln.Addr().String(), "first"); err != nil {
		t.Fatal(err)
	}
	defer caddy.Stop()
	c := connect(t, s.addr)
	c.names(t, scheme(1, 1))
	if got := c.text(t, "/"); got != "first" {
		t.Fatalf("answer %q", got)
	}
	body := c.get(t, "/bytes")
	defer body.Close()
	reloaded := make(chan error, 1)
	for i := range 20 {
		switch i {
		case 7:
			s.file(t, entry(1, 1), entry(2, 2))
			deadline := time.Now().Add(within)
			for {
				if newer := connect(t, s.addr); newer.id[0]>>5 == 2 {
					newer.names(t, scheme(2, 2))
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("no connection id is of the new configuration")
				}
				time.Sleep(50 * time.Millisecond)
			}
		case 14:
			// Caddy comes back when the requests of the former configuration are answered.
			go func() { reloaded <- s.load(ln.Addr().String(), "second") }()
			deadline := time.Now().Add(within)
			for s.text(t) != "second" {
				if time.Now().After(deadline) {
					t.Fatal("the second configuration does not answer")
				}
				time.Sleep(50 * time.Millisecond)
			}
		}
		c.move(t)
		next <- struct{}{}
		got := make([]byte, len(chunk))
		if _, err := io.ReadFull(body, got); err != nil || !bytes.Equal(got, chunk) {
			t.Fatalf("after move %d: %v", i, err)
		}
	}
	close(next)
	if rest, err := io.ReadAll(body); err != nil || len(rest) > 0 {
		t.Fatalf("the end of the download: %d bytes more, %v", len(rest), err)
	}
	c.conn.CloseWithError(0, "")
	if err := <-reloaded; err != nil {
		t.Fatal(err)
	}
}

// TestCaddyReloads: every client that comes while Caddy is reloaded, again and again, is answered.
func TestCaddyReloads(t *testing.T) {
	s := newSetting(t)
	if err := s.load("127.0.0.1:1", "0"); err != nil {
		t.Fatal(err)
	}
	defer caddy.Stop()
	for i := range 100 {
		text, reloaded := fmt.Sprint(i+1), make(chan error, 1)
		go func() { reloaded <- s.load("127.0.0.1:1", text) }()
		deadline := time.Now().Add(within)
		for s.text(t) != text {
			if time.Now().After(deadline) {
				t.Fatalf("configuration %s does not answer", text)
			}
		}
		if err := <-reloaded; err != nil {
			t.Fatal(err)
		}
	}
}

// TestCaddyRefuses: what is wrong is told, and changes nothing.
func TestCaddyRefuses(t *testing.T) {
	s := newSetting(t)
	for want, fields := range map[string]map[string]any{
		`server: "shop": there is no such HTTP server`: {"server": "shop"},
		"config: missing":           {"config": ""},
		"no such file":              {"config": s.config + ".none"},
		"no such file or directory": {"secret": s.config + ".none"},
		"must be at least 16":       {"secret": os.DevNull},
		`listen: "127.0.0.1:port"`:  {"listen": "127.0.0.1:port"},
		`unknown field \"listne\"`:  {"listne": ""},
	} {
		s.fields = fields
		if err := s.load("127.0.0.1:1", ""); err == nil || !strings.Contains(err.Error(), strings.ReplaceAll(want, `\"`, `"`)) {
			t.Errorf("%v: %v, want %q", fields, err, want)
		}
	}
	s.fields = nil
	if err := s.load("127.0.0.1:1", "first"); err != nil {
		t.Fatal(err)
	}
	defer caddy.Stop()
	s.fields = map[string]any{"retry": true}
	if err := s.load("127.0.0.1:1", "second"); err == nil || !strings.Contains(err.Error(), "must stay") {
		t.Errorf("another retry: %v", err)
	}
	if got := connect(t, s.addr).text(t, "/"); got != "first" {
		t.Errorf("answer %q after what was refused", got)
	}
}
