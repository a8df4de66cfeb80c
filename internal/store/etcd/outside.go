package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-semver/semver"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Outside describes an external etcd cluster.
type Outside struct {
	// Endpoints are URLs of its members, https://host:port.
	Endpoints []string
	// CA, Cert and Key are PEM files: the CA of its certificates (the system's roots when empty),
	// and a client certificate, which the cluster may not require.
	CA, Cert, Key string
	// Login is a file with a user name and a password, a line each; empty: none is required.
	Login string
	// Prefix is the prefix of all keys of Shunt.
	Prefix string
	Log    *slog.Logger
}

// Limits of an external etcd.
const (
	outsideDial = 5 * time.Second
	// neededFlags are the flags that its members must be started with.
	neededFlags = "--max-txn-ops=131072 --max-request-bytes=67108864"
)

// oldest is the first version of each release line whose progress notifications never overtake
// events (etcd issue 15220).
var oldest = []semver.Version{*semver.New("3.4.25"), *semver.New("3.5.8"), *semver.New("3.6.0")}

// OpenOutside connects to the cluster and checks that it can be used.
func OpenOutside(ctx context.Context, o Outside) (*Store, error) {
	s, err := openOutside(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("open store in etcd %s: %w", strings.Join(o.Endpoints, ","), err)
	}
	return s, nil
}

func openOutside(ctx context.Context, o Outside) (*Store, error) {
	user, password, err := readLogin(o.Login)
	if err != nil {
		return nil, err
	}
	files, err := outsideTLS(o)
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: o.Endpoints, TLS: files, Username: user, Password: password, Context: context.WithoutCancel(ctx),
		DialTimeout: outsideDial, DialKeepAliveTime: 2 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
		MaxCallSendMsgSize: maxRequestBytes + 1<<20, MaxCallRecvMsgSize: 1<<31 - 1, Logger: zap.NewNop(),
		PermitWithoutStream: true,
	})
	if err != nil {
		return nil, err
	}
	s := newStore(client, o.Log)
	s.prefix, s.progress = o.Prefix, newProgress()
	if err := s.usable(ctx, o.Endpoints); err != nil {
		s.Close()
		return nil, errors.Join(err, unreachable(o.Endpoints, files))
	}
	s.tending.Go(func() { s.progress.run(s.life, client) })
	return s, nil
}

// readLogin reads the user and the password.
func readLogin(path string) (user, password string, err error) {
	if path == "" {
		return "", "", nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", "", fmt.Errorf("read login: %w", err)
	}
	lines := strings.Split(strings.TrimRight(string(text), "\r\n"), "\n")
	if len(lines) != 2 || lines[0] == "" || lines[1] == "" {
		return "", "", fmt.Errorf("read login %s: %d lines: must be two, a user name and a password", path, len(lines))
	}
	return strings.TrimRight(lines[0], "\r"), lines[1], nil
}

func outsideTLS(o Outside) (*tls.Config, error) {
	if !slices.ContainsFunc(o.Endpoints, func(e string) bool { return strings.HasPrefix(e, "https://") }) {
		return nil, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CA != "" {
		text, err := os.ReadFile(o.CA)
		if err != nil {
			return nil, fmt.Errorf("read CA: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("read CA %s: holds no certificate", o.CA)
		}
	}
	if o.Cert == "" {
		return cfg, nil
	}
	read := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
		if err != nil {
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
		return &pair, nil
	}
	// Read at every connection, so that a renewed certificate is used.
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	_, err := read()
	return cfg, err
}

// usable returns an error unless the cluster answers, is new enough and accepts transactions of the
// maximum size.
func (s *Store) usable(ctx context.Context, endpoints []string) error {
	ctx, cancel := context.WithTimeout(ctx, outsideDial)
	defer cancel()
	if _, err := s.Barrier(ctx); err != nil {
		return err
	}
	for _, endpoint := range endpoints {
		status, err := s.client.Status(ctx, endpoint)
		if err != nil {
			continue // it is down, or its status is not accessible: the others serve
		}
		if err := newEnough(status.Version); err != nil {
			return fmt.Errorf("%s: %w", endpoint, err)
		}
	}
	return s.tryTxn(ctx)
}

func newEnough(version string) error {
	v, err := semver.NewVersion(version)
	if err != nil {
		return fmt.Errorf("version %q: %w", version, err)
	}
	for _, least := range oldest {
		if v.Major == least.Major && v.Minor == least.Minor && !v.LessThan(least) {
			return nil
		}
	}
	if newest := oldest[len(oldest)-1]; !v.LessThan(newest) {
		return nil
	}
	return fmt.Errorf("version %s: must be 3.4.25, 3.5.8 or later", version)
}

// tryTxn sends a transaction of the maximum size whose compare has no key. etcd checks the size
// first and does not execute it.
func (s *Store) tryTxn(ctx context.Context) error {
	ops := make([]clientv3.Op, maxTxnOps)
	for i := range ops {
		ops[i] = clientv3.OpDelete(s.prefix + "/shunt/none/none")
	}
	_, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(""), "=", 0)).Then(ops...).Commit()
	switch {
	case tooLarge(err):
		return fmt.Errorf("it takes too small transactions: its members must be started with %s", neededFlags)
	case errors.Is(err, rpctypes.ErrEmptyKey):
		return nil
	}
	return s.fault("try a large transaction", err)
}

// tooLarge reports whether etcd refused the size, or gRPC before etcd received the request.
func tooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrTooManyOps) || errors.Is(err, rpctypes.ErrRequestTooLarge) ||
		err != nil && strings.Contains(err.Error(), "received message larger than max")
}

// unreachable returns the reason why connections to endpoints fail, which etcd's client does not
// return; nil if they succeed.
func unreachable(endpoints []string, files *tls.Config) error {
	var faults []error
	for _, endpoint := range endpoints {
		u, err := url.Parse(endpoint)
		if err == nil {
			err = dial(u, files)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", endpoint, err))
		}
	}
	return errors.Join(faults...)
}

// dialTimeout bounds a connection that is made only to find the reason of a failure.
const dialTimeout = time.Second

func dial(u *url.URL, files *tls.Config) error {
	conn, err := net.DialTimeout("tcp", u.Host, dialTimeout)
	if err != nil || u.Scheme != "https" {
		return err
	}
	defer conn.Close()
	cfg := files.Clone()
	cfg.ServerName, cfg.NextProtos = u.Hostname(), []string{"h2"}
	secured := tls.Client(conn, cfg)
	secured.SetDeadline(time.Now().Add(dialTimeout))
	if err := secured.Handshake(); err != nil {
		return err
	}
	// A server that refuses the client's certificate reports that after the handshake; others send
	// their settings.
	_, err = secured.Read(make([]byte, 1))
	return err
}
