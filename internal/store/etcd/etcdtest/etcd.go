// Package etcdtest runs an external etcd for tests.
package etcdtest

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Serve runs an etcd of one member, without TLS, on a loopback address until the test ends. It
// returns the URL of its clients.
func Serve(t testing.TB) string {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.UnsafeNoFsync = t.TempDir(), true
	listen := url.URL{Scheme: "http", Host: freeAddr(t)}
	cfg.ListenPeerUrls = []url.URL{}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{listen}, []url.URL{listen}
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.MaxTxnOps, cfg.MaxRequestBytes = 131072, 64<<20 // as docs/ops/members.md requires
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	return listen.String()
}

// freeAddr returns an address that only this process uses: outgoing connections leave from
// 127.0.0.1 and cannot take its port.
func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.80.%d.%d:0", os.Getpid()>>8&255, os.Getpid()&255))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
