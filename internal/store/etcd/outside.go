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

// Outside says where an etcd cluster is that others run.
type Outside struct {
	// Endpoints are URLs of its members, https://host:port.
	Endpoints []string
	// CA, Cert and Key are PEM files: what its certificates are checked against (the system's roots when empty), and a
	// client certificate, which it may not need.
	CA, Cert, Key string
	// Login is a file with a user name and a password, a line each; empty: none is needed.
	Login string
	// Prefix stands before every key of ours.
	Prefix string
	Log    *slog.Logger
}

// Limits of an outside etcd.
const (
	outsideDial = 5 * time.Second
	// neededFlags is what its members must be started with.
	neededFlags = "--max-txn-ops=131072 --max-request-bytes=67108864"
)

// oldest of each line of versions whose progress notifications never overtake events (etcd issue 15220).
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
	// Read at every connection, so that a renewed one is used.
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	_, err := read()
	return cfg, err
}

// usable tells whether the cluster answers, is not too old and takes transactions as large as ours.
func (s *Store) usable(ctx context.Context, endpoints []string) error {
	ctx, cancel := context.WithTimeout(ctx, outsideDial)
	defer cancel()
	if _, err := s.Barrier(ctx); err != nil {
		return err
	}
	for _, endpoint := range endpoints {
		status, err := s.client.Status(ctx, endpoint)
		if err != nil {
			continue // one that is down, or may not be asked: the others serve
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

// tryTxn asks for a transaction of the largest size, whose compare has no key: etcd looks at the size first and does
// nothing of it.
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

// tooLarge: etcd refuses by itself, or gRPC does before etcd sees the request.
func tooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrTooManyOps) || errors.Is(err, rpctypes.ErrRequestTooLarge) ||
		err != nil && strings.Contains(err.Error(), "received message larger than max")
}

// unreachable is why endpoints cannot be connected to, which etcd's client keeps to itself; nil when they can.
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

// dialTimeout is for one connection that tells why others failed.
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
	// A server that refuses the client's certificate says so after the handshake; another sends its settings.
	_, err = secured.Read(make([]byte, 1))
	return err
}
