package manager_test

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/store"
)

// TestStreamsOfNodesEndWithTheirCertificate: streams of nodes and managers end with their
// certificate, and their connections accept no further calls. A new certificate is accepted on a
// new connection of the same client.
func TestStreamsOfNodesEndWithTheirCertificate(t *testing.T) {
	at := clock.NewFake(time.Now())
	r := newRigAt(t, store.NewMemory(), at)
	r.apply(network(), muxNode(1))
	present := r.as(r.ca(), "mux1", "mux") // valid for an hour
	cfg := present.Clone()
	cfg.Certificates = nil
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &present.Certificates[0], nil }
	tr := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	node := shuntv1connect.NewNodeProtocolClient(&http.Client{Transport: tr}, "https://"+r.addr)
	sync := func() (*rawStream, error) {
		s := node.Sync(t.Context())
		t.Cleanup(func() { s.CloseRequest() })
		// Receive returns the cause
		_ = s.Send(&apiv1.NodeReport{Hello: &apiv1.Hello{Name: "mux1", Role: "mux"}})
		_, err := s.Receive()
		return s, err
	}
	mux, err := sync()
	if err != nil {
		t.Fatal(err)
	}
	relay := shuntv1connect.NewMemberProtocolClient(r.httpClient(r.as(r.ca(), "m2", "manager")), "https://"+r.addr).Relay(t.Context())
	t.Cleanup(func() { relay.CloseRequest() })
	if err := relay.Send(&apiv1.RelayUp{Manager: "m2"}); err != nil {
		t.Fatal(err)
	}
	if _, err := relay.Receive(); err != nil {
		t.Fatal(err)
	}
	at.Advance(time.Hour + time.Second)
	ended := func(receive func() error) (err error) {
		for err == nil {
			err = receive()
		}
		return err
	}
	for who, receive := range map[string]func() error{
		"node":    func() error { _, err := mux.Receive(); return err },
		"manager": func() error { _, err := relay.Receive(); return err },
	} {
		if err := ended(receive); connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), "the certificate has expired") {
			t.Errorf("the stream of a %s whose certificate has expired ended with %v", who, err)
		}
	}
	if _, err := sync(); connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), "client certificate: it has expired") {
		t.Errorf("another stream on the connection: %v", err)
	}
	renewed, key, err := r.ca().Client("mux1", "mux", 24*time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(renewed, key)
	if err != nil {
		t.Fatal(err)
	}
	present.Certificates[0] = pair
	for tries := 0; ; tries++ { // the connection may accept a call until the client sees its end
		_, err := sync()
		if err == nil {
			break
		}
		if tries == maxTries {
			t.Fatalf("with a new certificate: %v", err)
		}
		<-time.After(100 * time.Microsecond)
	}
}
