package etcd

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/store"
)

// authority is the CA of managers, with certificate files.
type authority struct {
	t   testing.TB
	ca  *pki.CA
	dir string
	TLS TLS
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	ca, err := pki.NewCA("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, ca: ca, dir: t.TempDir()}
	a.TLS = a.files("manager", a.leaf(func(c *x509.Certificate) {
		c.DNSNames = []string{pki.ServerName}
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	}))
	return a
}

// leaf returns a certificate and its key.
func (a *authority) leaf(change func(*x509.Certificate)) tls.Certificate {
	a.t.Helper()
	keyPEM, err := a.ca.KeyPEM()
	if err != nil {
		a.t.Fatal(err)
	}
	issuer, err := tls.X509KeyPair(a.ca.CertPEM(), keyPEM)
	if err != nil {
		a.t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "m", OrganizationalUnit: []string{"manager"}},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
	}
	change(template)
	der, err := x509.CreateCertificate(rand.Reader, template, a.ca.Cert, key.Public(), issuer.PrivateKey.(crypto.Signer))
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) files(name string, c tls.Certificate) TLS {
	a.t.Helper()
	key, err := pki.KeyPEM(c.PrivateKey.(crypto.Signer))
	if err != nil {
		a.t.Fatal(err)
	}
	out := TLS{Cert: filepath.Join(a.dir, name+".crt"), Key: filepath.Join(a.dir, name+".key"), CA: filepath.Join(a.dir, "ca.crt")}
	for path, text := range map[string][]byte{
		out.Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}), out.Key: key, out.CA: a.ca.CertPEM(),
	} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return out
}

// freeAddr returns an address that only this process uses: outgoing connections leave from
// 127.0.0.1 and cannot take its ports.
func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.79.%d.%d:0", os.Getpid()>>8&255, os.Getpid()&255))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// group is a set of members of one store in this process.
type group struct {
	t       testing.TB
	ca      *authority
	options []Options
	members []*Member
}

// newGroup starts n members at the same time, without durability.
func newGroup(t testing.TB, n int) *group {
	t.Helper()
	return newGroupWith(t, n, func(*Options) {})
}

// newGroupWith starts members with other options.
func newGroupWith(t testing.TB, n int, change func(*Options)) *group {
	t.Helper()
	g := &group{t: t, ca: newAuthority(t)}
	var all []string
	for range n {
		o := g.next()
		change(&o)
		all = append(all, o.Name+"="+peerURL(o.Peer))
		g.options, g.members = append(g.options, o), append(g.members, nil)
	}
	var starting sync.WaitGroup
	for i := range g.options {
		g.options[i].Cluster, g.options[i].bootstrap = all, all[0]
		starting.Go(func() {
			var err error
			if g.members[i], err = Open(t.Context(), g.options[i]); err != nil {
				t.Error(err)
			}
		})
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, m := range g.members {
		t.Cleanup(func() { m.Close() })
	}
	return g
}

// next returns the options of one more member.
func (g *group) next() Options {
	return Options{
		Dir: filepath.Join(g.t.TempDir(), "etcd"), Name: fmt.Sprintf("m%d", len(g.options)+1), Peer: freeAddr(g.t), TLS: g.ca.TLS,
		UnsafeNoFsync: true, Log: slog.New(slog.NewTextHandler(g.t.Output(), nil)),
	}
}

// grow adds one more member, as Shunt does.
func (g *group) grow() *Member {
	g.t.Helper()
	o := g.next()
	var err error
	if o.Cluster, err = g.any().Add(g.t.Context(), o.Name, o.Peer); err != nil {
		g.t.Fatal(err)
	}
	g.options, g.members = append(g.options, o), append(g.members, nil)
	return g.start(len(g.options) - 1)
}

// any returns a member that is up.
func (g *group) any() *Member {
	for _, m := range g.members {
		if m != nil && m.ended() == nil {
			return m
		}
	}
	g.t.Fatal("no member is up")
	return nil
}

func (g *group) start(i int) *Member {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 2*time.Minute)
	defer cancel()
	m, err := Open(ctx, g.options[i])
	if err != nil {
		g.t.Fatal(err)
	}
	g.members[i] = m
	g.t.Cleanup(func() { m.Close() })
	return m
}

// follower returns the index of a member that is not the leader.
func (g *group) follower() int {
	for i, m := range g.members {
		if m.etcd.Server.Leader() != m.etcd.Server.MemberID() {
			return i
		}
	}
	g.t.Fatal("everybody leads")
	return 0
}

func put(t testing.TB, s store.Store, key, value string) int64 {
	t.Helper()
	return commit(t, s, store.Put(key, []byte(value)))
}

func commit(t testing.TB, s store.Store, op store.Op) int64 {
	t.Helper()
	res, err := s.Txn(t.Context(), store.Txn{Ops: []store.Op{op}})
	if err != nil {
		t.Fatal(err)
	}
	return res.Revision
}

func value(t testing.TB, s store.Store, key string) string {
	t.Helper()
	kv, _, _, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(kv.Value)
}
