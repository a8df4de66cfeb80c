package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// fakeManager keeps objects in a map and reports the status that the test sets.
type fakeManager struct {
	shuntv1connect.UnimplementedManagerHandler
	revision int64
	objects  map[string]*apiv1.Object // by lb.Ref
	status   *apiv1.StatusResponse
	traces   []*apiv1.TraceResult
	members  *apiv1.MembersResponse
	events   []*apiv1.Event
	audit    []*apiv1.AuditEntry
	fail     error // of every call
	// meddle makes another user's change, once, just before the next Apply.
	meddle func()
	url    string
	server *httptest.Server
	// streams counts the watches of objects and events.
	streams int
	// applied counts the calls of Apply.
	applied int
	// ca is the certificate of the managers' CA, PEM. caBegun is set after its replacement began.
	ca      []byte
	caBegun bool
	// before runs before every call. Its error is the response.
	before func() error
}

// startFake serves a fake manager over TLS and configures it as the manager.
func startFake(t *testing.T) *fakeManager {
	t.Helper()
	return startFakes(t, 1)[0]
}

// startFakes serves several fake managers of one CA and configures them as the managers, in order.
func startFakes(t *testing.T, n int) []*fakeManager {
	t.Helper()
	ca := newTestCA(t)
	var all []*fakeManager
	var text strings.Builder
	text.WriteString("server:\n")
	for range n {
		fake := &fakeManager{objects: map[string]*apiv1.Object{}, status: &apiv1.StatusResponse{}, members: &apiv1.MembersResponse{Members: []*apiv1.Member{
			{Name: "m1", Address: "10.99.0.11:8443", Peer: "10.99.0.11:8444", Leader: true, Healthy: true, Version: "v1.2.3", Revision: 42, Nodes: 7},
			{Name: "m2", Address: "10.99.0.12:8443", Peer: "10.99.0.12:8444", Healthy: true, Version: "v1.2.3", Commit: "0123abcd4567ef890123abcd4567ef890123abcd", Revision: 41, Nodes: 3},
		}}}
		mux := http.NewServeMux()
		mux.Handle(shuntv1connect.NewManagerHandler(fake))
		fake.server = httptest.NewUnstartedServer(mux)
		fake.server.EnableHTTP2 = true
		fake.server.TLS = ca.server(t)
		fake.server.StartTLS()
		t.Cleanup(fake.server.Close)
		fake.url, fake.ca = fake.server.URL, ca.CertPEM()
		fmt.Fprintf(&text, "- %s\n", fake.url)
		all = append(all, fake)
	}
	text.WriteString("ca: |\n")
	for line := range strings.Lines(string(ca.CertPEM())) {
		text.WriteString("  " + line)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(configVariable, file)
	t.Setenv(tokenVariable, "")
	return all
}

// called returns the error that the test wants of a call.
func (f *fakeManager) called() error {
	if f.before != nil {
		if err := f.before(); err != nil {
			return err
		}
	}
	return f.fail
}

// refuse returns INVALID_ARGUMENT with a detail per fault, as a manager does.
func refuse(faults []lb.Violation) error {
	err := connect.NewError(connect.CodeInvalidArgument, errors.New("invalid objects"))
	for _, v := range faults {
		detail, wrong := connect.NewErrorDetail(&apiv1.Violation{Field: v.Field, Value: v.Value, Allowed: v.Allowed})
		if wrong != nil {
			return wrong
		}
		err.AddDetail(detail)
	}
	return err
}

func domain(objects map[string]*apiv1.Object) []lb.Object {
	var out []lb.Object
	for _, o := range objects {
		object, _ := convert.FromObject(o, 0)
		out = append(out, object)
	}
	return out
}
