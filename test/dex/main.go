// Command dex is a real OpenID Connect provider for tests: the server of github.com/dexidp/dex with
// its store in memory, fixed users and a certificate that it makes. It is a separate module, so
// that its dependencies are not in Shunt's. Each start makes new signing keys.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dexidp/dex/server"
	"github.com/dexidp/dex/server/signer"
	"github.com/dexidp/dex/storage"
	"github.com/dexidp/dex/storage/memory"
	"github.com/dexidp/dex/web"
	"golang.org/x/crypto/bcrypt"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "`address:port`; the issuer is https:// and this")
	ca := flag.String("ca", "", "`file` for the certificate")
	lifetime := flag.Duration("lifetime", time.Hour, "of ID tokens; they have expired when it is less than 0")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *listen, *ca, *lifetime); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, listen, caFile string, lifetime time.Duration) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	defer l.Close()
	quiet := slog.New(slog.DiscardHandler)
	store, err := people(memory.New(quiet), quiet)
	if err != nil {
		return err
	}
	keys, err := (&signer.LocalConfig{KeysRotationPeriod: "6h"}).Open(ctx, store, max(lifetime, time.Hour), time.Now, quiet)
	if err != nil {
		return err
	}
	issuer := "https://" + l.Addr().String()
	s, err := server.NewServer(ctx, server.Config{
		Issuer: issuer, Storage: store, SkipApprovalScreen: true, PasswordConnector: "local", IDTokensValidFor: lifetime,
		AllowedGrantTypes: []string{"authorization_code", "password"}, Signer: keys, Logger: quiet, Web: server.WebConfig{WebFS: web.FS()},
	})
	if err != nil {
		return err
	}
	pair, err := certificate(l.Addr().(*net.TCPAddr).IP, caFile)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: s, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}, ErrorLog: log.New(io.Discard, "", 0)}
	context.AfterFunc(ctx, func() { srv.Close() })
	fmt.Println(issuer)
	if err := srv.ServeTLS(l, "", ""); ctx.Err() == nil {
		return err
	}
	return nil
}

// people adds the users: ann of shop, bob the operator, and eve, who is in no group. All have the
// password "secret". Clients shunt and other have the secret "client".
func people(s storage.Storage, log *slog.Logger) (storage.Storage, error) {
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), 10)
	if err != nil {
		return nil, err
	}
	person := func(name string, groups ...string) storage.Password {
		return storage.Password{Email: name + "@example.org", Username: name, UserID: name, Hash: hash, Groups: groups}
	}
	s = storage.WithStaticPasswords(s, []storage.Password{person("ann", "staff", "shop-team"), person("bob", "staff", "operators"), person("eve")}, log)
	s = storage.WithStaticClients(s, []storage.Client{{ID: "shunt", Secret: "client"}, {ID: "other", Secret: "client"}})
	return storage.WithStaticConnectors(s, []storage.Connector{{ID: "local", Type: "local", Name: "local"}}), nil
}

// certificate reads the certificate of an earlier start, or makes a self-signed one for the
// address. Its key is in FILE.key.
func certificate(ip net.IP, file string) (tls.Certificate, error) {
	if pair, err := tls.LoadX509KeyPair(file, file+".key"); err == nil {
		return pair, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "dex"}, IPAddresses: []net.IP{ip}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	err = errors.Join(
		os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(file+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600),
	)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
