package etcd

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/shuntlb/shunt/internal/store"
	"github.com/shuntlb/shunt/internal/store/storetest"
)

// server is an external etcd in its own process.
type server struct {
	Dir, Listen string
	TLS         TLS
	// Small keeps etcd's default limits of transactions.
	Small bool
}

// serverVariable makes the test binary run as that process.
const serverVariable = "SHUNT_TEST_ETCD"

func init() {
	if text := os.Getenv(serverVariable); text != "" {
		var s server
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			panic(err)
		}
		s.run()
	}
}

// run prints a line when it is up, and ends with its parent process.
func (s server) run() {
	cfg := embed.NewConfig()
	cfg.Dir, cfg.UnsafeNoFsync = s.Dir, true
	listen := url.URL{Scheme: "https", Host: s.Listen}
	cfg.ListenPeerUrls = []url.URL{}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{listen}, []url.URL{listen}
	cfg.ClientTLSInfo = transport.TLSInfo{CertFile: s.TLS.Cert, KeyFile: s.TLS.Key, TrustedCAFile: s.TLS.CA, ClientCertAuth: true}
	cfg.TickMs, cfg.ElectionMs = 10, 100
	if !s.Small {
		cfg.MaxTxnOps, cfg.MaxRequestBytes = maxTxnOps, maxRequestBytes
	}
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		panic(err)
	}
	<-e.Server.ReadyNotify()
	fmt.Println("up")
	<-e.Server.StopNotify()
	os.Exit(1)
}

// startServer starts it and returns its address and certificates.
func startServer(t *testing.T, small bool) Outside {
	t.Helper()
	ca := newAuthority(t)
	listen := freeAddr(t)
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		t.Fatal(err)
	}
	files := ca.files("server", ca.leaf(func(c *x509.Certificate) {
		c.IPAddresses = []net.IP{net.ParseIP(host)}
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	}))
	text, err := json.Marshal(server{Dir: t.TempDir(), Listen: listen, TLS: files, Small: small})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverVariable+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "up\n" {
		t.Fatalf("etcd said %q, %v", line, err)
	}
	return Outside{Endpoints: []string{"https://" + listen}, CA: files.CA, Cert: files.Cert, Key: files.Key}
}

// TestOutside runs the suite against an etcd in another process, which uses TLS and requires client
// certificates.
func TestOutside(t *testing.T) {
	t.Parallel()
	o := startServer(t, false)
	opened := 0
	open := func(t *testing.T) store.Store {
		opened++
		o := o
		o.Prefix = fmt.Sprintf("/test%d", opened)
		s, err := OpenOutside(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	storetest.Run(t, open)
	storetest.RunMembers(t, func(t *testing.T) (store.Store, store.Store) {
		a := open(t)
		opened--
		b := open(t)
		t.Cleanup(func() { a.Close(); b.Close() })
		return a, b
	})
}

// TestOutsideShared: keys that others write are not returned, and a barrier waits only for Shunt's
// own writes.
func TestOutsideShared(t *testing.T) {
	t.Parallel()
	o := startServer(t, false)
	others, err := OpenOutside(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer others.Close()
	o.Prefix = "/ours"
	s, err := OpenOutside(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put(t, s, "/a", "1")
	start, err := s.List(t.Context(), "/")
	if err != nil || len(start.KVs) != 1 || start.KVs[0].Key != "/a" {
		t.Fatalf("list: %+v, %v", start, err)
	}
	w, err := s.Watch(t.Context(), "/", start.Revision+1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var seen int64
	for i := range 20 {
		foreign := put(t, others, "/theirs", fmt.Sprint(i))
		if i%3 == 0 {
			put(t, s, "/a", fmt.Sprint(i))
		}
		barrier, err := s.Barrier(t.Context())
		if err != nil || barrier < foreign {
			t.Fatalf("barrier %d after %d: %v", barrier, foreign, err)
		}
		for seen < barrier {
			b, err := w.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if b.Revision <= seen {
				t.Fatalf("batch %+v after %d", b, seen)
			}
			seen = b.Revision
			for _, ev := range b.Events {
				if ev.KV.Key != "/a" {
					t.Errorf("an event of another: %+v", ev)
				}
			}
		}
	}
	if got := value(t, others, "/ours/a"); got != "18" {
		t.Errorf("/ours/a: %q", got)
	}
}

// TestOutsideLogin: an etcd that requires user name and password gets them from a file.
func TestOutsideLogin(t *testing.T) {
	t.Parallel()
	o := startServer(t, false)
	s, err := OpenOutside(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	for _, do := range []func() error{
		func() error { _, err := s.client.RoleAdd(ctx, "root"); return err },
		func() error { _, err := s.client.UserAdd(ctx, "root", "geheim"); return err },
		func() error { _, err := s.client.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := s.client.RoleAdd(ctx, "shunt"); return err },
		func() error {
			_, err := s.client.RoleGrantPermission(ctx, "shunt", "/ours/", clientv3.GetPrefixRangeEnd("/ours/"), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := s.client.UserAdd(ctx, "shunt", "streng geheim"); return err },
		func() error { _, err := s.client.UserGrantRole(ctx, "shunt", "shunt"); return err },
		func() error { _, err := s.client.AuthEnable(ctx); return err },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	login := func(text string) Outside {
		o := o
		o.Prefix, o.Login = "/ours", filepath.Join(t.TempDir(), "login")
		// A client certificate would be its own login.
		if err := os.WriteFile(o.Login, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return o
	}
	ours, err := OpenOutside(ctx, login("shunt\nstreng geheim\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	put(t, ours, "/a", "1")
	if got := value(t, ours, "/a"); got != "1" {
		t.Errorf("with a login: %q", got)
	}
	for text, want := range map[string]string{
		"shunt\nfalsch\n":   "authentication failed",
		"shunt\n":           "must be two, a user name and a password",
		"shunt\na\nb\n":     "must be two, a user name and a password",
		"\nstreng geheim\n": "must be two, a user name and a password",
	} {
		s, err := OpenOutside(ctx, login(text))
		if err == nil {
			s.Close()
			t.Errorf("%q: let in", text)
		} else if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "geheim") || strings.Contains(err.Error(), "falsch") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestOutsideRefused: OpenOutside returns an error for configurations that cannot work.
func TestOutsideRefused(t *testing.T) {
	t.Parallel()
	small := startServer(t, true)
	noCert := small
	noCert.Cert, noCert.Key = "", ""
	otherCA := small
	otherCA.CA = newAuthority(t).TLS.CA
	noFile := small
	noFile.CA = filepath.Join(t.TempDir(), "none")
	nobody := small
	nobody.Endpoints = []string{"https://" + freeAddr(t)}
	for name, c := range map[string]struct {
		o    Outside
		want string
	}{
		"small transactions":    {small, "--max-txn-ops=131072 --max-request-bytes=67108864"},
		"no client certificate": {noCert, "certificate required"},
		"another CA":            {otherCA, "certificate signed by unknown authority"},
		"no CA file":            {noFile, "read CA"},
		"nobody there":          {nobody, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := OpenOutside(context.Background(), c.o)
			if err == nil {
				s.Close()
				t.Error("opened")
			} else if !strings.Contains(err.Error(), c.want) {
				t.Error(err)
			}
		})
	}
}

func TestOldVersions(t *testing.T) {
	t.Parallel()
	for version, ok := range map[string]bool{
		"3.4.23": false, "3.4.24": false, "3.4.25": true, "3.5.7": false, "3.5.8": true, "3.5.21": true, "3.6.0": true, "3.6.0-rc.1": false, "3.7.3": true,
		"3.3.27": false, "4.0.0": true, "": false, "new": false,
	} {
		if err := newEnough(version); (err == nil) != ok {
			t.Errorf("%q: %v", version, err)
		}
	}
}
