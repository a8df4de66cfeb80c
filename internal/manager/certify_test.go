package manager_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/store"
)

// person is a client with a certificate that the manager signed.
type person struct {
	t    *testing.T
	made *apiv1.CreateCertificateResponse
	key  *ecdsa.PrivateKey
}

// person requests a certificate as an administrator. A ttl of 0 is the default.
func (r *rig) person(name, role, tenant string, ttl time.Duration) *person {
	r.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		r.t.Fatal(err)
	}
	// The subject of the request is ignored.
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "root", OrganizationalUnit: []string{"manager"}}}, key)
	if err != nil {
		r.t.Fatal(err)
	}
	req := &apiv1.CreateCertificateRequest{Name: name, Role: role, Tenant: tenant, Csr: csr}
	if ttl != 0 {
		req.Ttl = durationpb.New(ttl)
	}
	res, err := r.admin.CreateCertificate(r.t.Context(), connect.NewRequest(req))
	if err != nil {
		r.t.Fatal(err)
	}
	return &person{r.t, res.Msg, key}
}

// at returns the person's client of a manager.
func (p *person) at(r *rig) shuntv1connect.ManagerClient { return p.among(r, r.ca().Pool()) }

// among returns the person's client of a manager whose certificate one of several CAs signed.
func (p *person) among(r *rig, roots *x509.CertPool) shuntv1connect.ManagerClient {
	p.t.Helper()
	key, err := pki.KeyPEM(p.key)
	if err != nil {
		p.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(p.made.Certificate, key)
	if err != nil {
		p.t.Fatal(err)
	}
	cfg := &tls.Config{RootCAs: roots, ServerName: pki.ServerName, Certificates: []tls.Certificate{pair}}
	return shuntv1connect.NewManagerClient(r.httpClient(cfg), "https://"+r.addr)
}

// request returns a certificate request for the person's key.
func (p *person) request() []byte {
	p.t.Helper()
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, p.key)
	if err != nil {
		p.t.Fatal(err)
	}
	return csr
}

// TestCertificatesOfPeople checks that certificates grant the requested rights, and are in the list
// and in the audit log.
func TestCertificatesOfPeople(t *testing.T) {
	s := store.NewMemory()
	r := newRig(t, s)
	r.apply(network(), hostNode(1), tenant("shop", 0), ofTenant("shop-web", "shop", 10), ofTenant("media-web", "media", 20))
	alice, bob := r.person("alice", "admin", "", 0), r.person("bob", "tenant", "shop", time.Hour)
	if err := applyAs(t, alice.at(r), hostNode(1)); err != nil {
		t.Errorf("an admin applies: %v", err)
	}
	res, err := bob.at(r).Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: "Service"}))
	if err != nil || names(res.Msg.Objects) != "shop-web" {
		t.Errorf("bob of shop reads %v, error %v", res, err)
	}
	if _, err := bob.at(r).ListAccess(t.Context(), connect.NewRequest(&apiv1.ListAccessRequest{})); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("bob lists: %v", err)
	}
	cert, err := pki.ParseCert(alice.made.Certificate)
	if err != nil || cert.NotAfter.Sub(time.Now()).Round(time.Hour) != 720*time.Hour || !cert.NotAfter.Equal(alice.made.Access.Expires.AsTime()) {
		t.Errorf("the certificate is good until %v, the list says %v: %v", cert.NotAfter, alice.made.Access.Expires.AsTime(), err)
	}
	list, err := r.admin.ListAccess(t.Context(), connect.NewRequest(&apiv1.ListAccessRequest{}))
	if err != nil || len(list.Msg.Access) != 2 || list.Msg.Access[0].Via != "certificate" || list.Msg.Access[0].Id != pki.PersonID(cert) || list.Msg.Access[1].Tenant != "shop" {
		t.Errorf("the list is %v, error %v", list, err)
	}
	log, err := r.admin.Audit(t.Context(), connect.NewRequest(&apiv1.AuditRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	entries := log.Msg.Entries
	if e := entries[len(entries)-1]; e.Call != "CreateCertificate" || strings.Join(e.What, " ") != "access/"+bob.made.Access.Id+" (certificate, bob, tenant shop) created" || e.Who != "admin" {
		t.Errorf("the audit log says %v", e)
	}
	// The store holds only the certificate's hash.
	snap, err := s.List(t.Context(), "/shunt/access/")
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range snap.KVs {
		if bytes.Contains(kv.Value, cert.Raw) {
			t.Errorf("%s holds the certificate", kv.Key)
		}
	}
	// A token with the certificate's id is refused.
	if err := get(t, r.bearer("shunt_"+alice.made.Access.Id+"_"+strings.Repeat("A", 43))); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a token of a certificate's id: %v", err)
	}
}

func TestCertificateFaults(t *testing.T) {
	r := newRig(t, store.NewMemory())
	good := csr(t)
	forged := bytes.Clone(good)
	forged[len(forged)-1] ^= 1
	for field, req := range map[string]*apiv1.CreateCertificateRequest{
		"name":          {Name: "A B", Role: "admin", Csr: good},
		"role":          {Name: "alice", Role: "manager", Csr: good},
		"tenant":        {Name: "alice", Role: "tenant", Csr: good},
		"tenant: gone":  {Name: "alice", Role: "tenant", Tenant: "gone", Csr: good},
		"ttl":           {Name: "alice", Role: "admin", Ttl: durationpb.New(366 * 24 * time.Hour), Csr: good},
		"csr: ":         {Name: "alice", Role: "admin"},
		"csr: : must":   {Name: "alice", Role: "admin", Csr: forged},
		"csr: : must b": {Name: "alice", Role: "admin", Csr: append(bytes.Clone(good), make([]byte, 5000)...)},
	} {
		_, err := r.admin.CreateCertificate(t.Context(), connect.NewRequest(req))
		if v := violations(t, err); connect.CodeOf(err) != connect.CodeInvalidArgument || len(v) != 1 || !strings.HasPrefix(v[0], field) {
			t.Errorf("%s: %v, %q", field, err, v)
		}
	}
}

// TestStreamsEndWithTheirCertificate checks that a Watch ends with its certificate, and that an
// earlier connection does not keep the access.
func TestStreamsEndWithTheirCertificate(t *testing.T) {
	at := clock.NewFake(time.Now())
	r := newRigAt(t, store.NewMemory(), at)
	for _, c := range []struct {
		how string
		end func(id string) error
	}{
		{"was revoked", r.revoke},
		// Certificate times are whole seconds. This case is the last one, because TLS has a clock
		// of its own.
		{"has expired", func(string) error { at.Advance(time.Hour + time.Second); return nil }},
	} {
		how, end := c.how, c.end
		p := r.person("alice", "viewer", "", time.Hour)
		c := p.at(r)
		s, err := c.Watch(t.Context(), connect.NewRequest(&apiv1.WatchRequest{}))
		if err != nil || !s.Receive() {
			t.Fatalf("watch: %v %v", err, s.Err())
		}
		if err := end(p.made.Access.Id); err != nil {
			t.Fatal(err)
		}
		for s.Receive() {
		}
		if err := s.Err(); connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), "the certificate "+how) {
			t.Errorf("the stream of a certificate that %s ended with %v", how, err)
		}
		if err := get(t, c); connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), "client certificate: it "+how) {
			t.Errorf("a call after the certificate %s: %v", how, err)
		}
		at.Advance(2 * time.Second)
	}
	said := map[string]bool{}
	for _, e := range r.refusals(2) {
		said[e.GetRefused()] = e.GetWho() == "alice" && e.GetRole() == "viewer" && e.GetCall() == "Get" && e.GetFrom() != ""
	}
	if !said["client certificate: it has expired"] || len(said) != 2 {
		t.Errorf("the audit log has %v", said)
	}
}

// TestNoMemberTakesARevokedCertificate checks that no member accepts a certificate after its
// revocation was acknowledged, not even one whose view is behind.
func TestNoMemberTakesARevokedCertificate(t *testing.T) {
	gates := map[string]*gated{}
	ms := newMembers(t, 2, wrapGated(gates))
	leader, behind := ms.leader(1), ms.follower()
	p := behind.person("alice", "viewer", "", time.Hour) // a follower forwards the request
	c := p.at(behind)
	if err := version(t.Context(), c); err != nil {
		t.Fatalf("a good certificate: %v", err)
	}
	thaw := gates[behind.name].freeze()
	if err := leader.revoke(p.made.Access.Id); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := version(ctx, c); err == nil {
		t.Error("a member that is behind takes the certificate")
	}
	thaw()
	for what, err := range map[string]error{"version": version(t.Context(), c), "get": get(t, c), "at the leader": get(t, p.at(leader))} {
		if connect.CodeOf(err) != connect.CodeUnauthenticated {
			t.Errorf("%s: %v", what, err)
		}
	}
}
