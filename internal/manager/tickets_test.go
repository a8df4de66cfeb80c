package manager_test

import (
	"crypto/tls"
	"io"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/store"
)

// visit opens a new connection and reports whether it resumed a session.
func (r *rig) visit(cfg *tls.Config) bool {
	r.t.Helper()
	tr := &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "https://"+r.addr+"/", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	res, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	io.Copy(io.Discard, res.Body)
	return res.TLS.DidResume
}

// TestSessionsOutliveTheManager: a known client resumes its session, also after a restart. Tickets
// of other clusters are not accepted.
func TestSessionsOutliveTheManager(t *testing.T) {
	r := newRig(t, store.NewMemory())
	cfg := r.adminTLS()
	cfg.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	if r.visit(cfg) {
		t.Error("the first connection resumes")
	}
	if !r.visit(cfg) {
		t.Error("the second connection does not resume")
	}
	r.stop()
	r.start()
	if !r.visit(cfg) {
		t.Error("a connection after a restart does not resume")
	}
	other := newRig(t, store.NewMemory())
	foreign := other.adminTLS()
	foreign.ClientSessionCache = cfg.ClientSessionCache
	if other.visit(foreign) {
		t.Error("another cluster resumes the session")
	}
}

// TestTicketsEndWithTheirKeys: a session that begins now cannot be resumed two days later.
func TestTicketsEndWithTheirKeys(t *testing.T) {
	c := clock.NewFake(time.Now())
	r := newRigAt(t, store.NewMemory(), c)
	cfg := r.adminTLS()
	cfg.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	r.visit(cfg)
	r.stop()
	c.Advance(48 * time.Hour)
	cfg.Time = c.Now
	r.start()
	if r.visit(cfg) {
		t.Error("a session of two days ago is resumed")
	}
}

// TestResumedSessionsAreJudged: a session that began before the node was deleted is resumed, and
// its calls are refused like the certificate.
func TestResumedSessionsAreJudged(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1))
	cfg := r.as(r.ca(), "mux1", "mux")
	cfg.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	r.visit(cfg)
	r.delete("Node", "mux1")
	if !r.visit(cfg) {
		t.Error("the session is not resumed: the test shows nothing")
	}
	n := shuntv1connect.NewNodeProtocolClient(r.httpClient(cfg), "https://"+r.addr)
	_, err := n.Join(t.Context(), connect.NewRequest(&apiv1.JoinRequest{Name: "mux1", Role: "mux", Csr: csr(t)}))
	if connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("a deleted node renews its certificate: %v, want permission denied", err)
	}
}
