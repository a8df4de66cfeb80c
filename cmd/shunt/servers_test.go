package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/manager"
)

// command runs a command line.
func command(stdin string, args ...string) (stdout, stderr string, code int) {
	var out, fault bytes.Buffer
	code = run(args, strings.NewReader(stdin), &out, &fault)
	return out.String(), fault.String(), code
}

// closedPort returns the URL of a port without a listener.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.79.%d.%d:0", os.Getpid()>>8&255, os.Getpid()&255))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "https://" + l.Addr().String()
}

// frozen returns the URL of a manager whose kernel accepts connections and that never responds.
func frozen(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return "https://" + l.Addr().String()
}

// hanging returns the URL of a manager of the fakes' CA that reads a complete request and breaks
// the connection. It also returns the procedures that it receives.
func hanging(t *testing.T, like *fakeManager) (string, *[]string) {
	t.Helper()
	var heard []string
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		heard = append(heard, filepath.Base(r.URL.Path))
		panic(http.ErrAbortHandler)
	}))
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{Certificates: like.server.TLS.Certificates}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL, &heard
}

// TestManagersThatDoNotAnswer checks that reads and changes go to the manager that responds if
// nothing was sent to the others. Its certificate does not contain the dialed address.
func TestManagersThatDoNotAnswer(t *testing.T) {
	fake := startFake(t)
	all := strings.Join([]string{closedPort(t), frozen(t), fake.url}, ",")
	if out, fault, code := command(testNetwork, "--server", all, "apply", "-f", "-"); code != exitOK || fake.applied != 1 {
		t.Fatalf("apply: %d, %d times: %s%s", code, fake.applied, out, fault)
	}
	if out, fault, code := command("", "--server", all, "get", "network", "main", "-o", "yaml"); code != exitOK || !strings.Contains(out, "203.0.0.0/8") {
		t.Errorf("get: %d: %s%s", code, out, fault)
	}
}

// TestNoManagerAnswers checks that the error names each manager.
func TestNoManagerAnswers(t *testing.T) {
	startFake(t)
	a, b := closedPort(t), closedPort(t)
	_, fault, code := command("", "--server", a+", "+b, "get", "networks")
	if code != exitFailed || !strings.HasPrefix(fault, "shunt get: no manager can be reached: "+a+": ") || !strings.Contains(fault, "; "+b+": ") || strings.Count(fault, "\n") != 1 {
		t.Errorf("%d: %s", code, fault)
	}
}

// TestLostAnswers checks a manager that receives the request and dies. A read continues at the next
// one. A change does not, and the error reports that it may have been made.
func TestLostAnswers(t *testing.T) {
	fake := startFake(t)
	url, heard := hanging(t, fake)
	all := url + "," + fake.url
	if out, fault, code := command("", "--server", all, "get", "networks"); code != exitOK || !slices.Equal(*heard, []string{"Get"}) {
		t.Errorf("get: %d, heard %q: %s%s", code, *heard, out, fault)
	}
	*heard = nil
	_, fault, code := command(testNetwork, "--server", all, "apply", "-f", "-")
	if code != exitFailed || !strings.Contains(fault, "broke before it answered, and the change may have been made or not") {
		t.Errorf("apply: %d: %s", code, fault)
	}
	if !slices.Equal(*heard, []string{"Apply"}) || fake.applied != 0 {
		t.Errorf("one manager heard %q and the other %d changes, want one change at one", *heard, fake.applied)
	}
}

// TestNobodyLeadsForAWhile checks that a call refused because no manager leads is repeated, changes
// included, because it had no effect. A change with any other refusal is not repeated.
func TestNobodyLeadsForAWhile(t *testing.T) {
	fakes := startFakes(t, 2)
	refusals := 3
	refuse := func(text string) func() error {
		return func() error {
			if refusals--; refusals >= 0 {
				return connect.NewError(connect.CodeUnavailable, errors.New(text))
			}
			return nil
		}
	}
	for _, fake := range fakes {
		fake.before = refuse(manager.NoLeader)
	}
	if out, fault, code := command(testNetwork, "apply", "-f", "-"); code != exitOK || fakes[0].applied+fakes[1].applied != 1 {
		t.Fatalf("apply: %d: %s%s", code, out, fault)
	}
	refusals = 3
	for _, fake := range fakes {
		fake.before = refuse("the store does not answer")
	}
	if _, fault, code := command(testNetwork, "apply", "-f", "-"); code != exitFailed || refusals != 2 || !strings.Contains(fault, "may have been made or not: the store does not answer") {
		t.Errorf("apply: %d, %d refusals left: %s", code, refusals, fault)
	}
	refusals = 1
	if out, fault, code := command("", "get", "networks"); code != exitOK {
		t.Errorf("get: %d: %s%s", code, out, fault)
	}
}

// TestWatchGoesToAnotherManager stops a manager during a watch and checks that the next manager
// delivers the changes made meanwhile.
func TestWatchGoesToAnotherManager(t *testing.T) {
	fakes := startFakes(t, 2)
	put := func(f *fakeManager, name string, revision int64) {
		n := &lb.Tenant{Name: name}
		lb.SetDefaults(n)
		f.objects[lb.Ref(lb.KindTenant, name)] = convert.ToObject(n)
		f.objects[lb.Ref(lb.KindTenant, name)].Revision = revision
		f.revision = max(f.revision, revision)
	}
	for _, name := range []string{"changed", "gone", "same"} {
		put(fakes[0], name, 4)
	}
	fakes[1].streams = 1 // its first watch is the second one of the test
	put(fakes[1], "changed", 5)
	put(fakes[1], "new", 6)
	put(fakes[1], "same", 4)
	put(fakes[1], "zz", 6) // left out by a second watch
	fakes[1].objects["tenants/changed"].Revision = 4
	out, fault, code := command("", "get", "tenants", "--watch")
	want := "EVENT     REVISION  NAME\n" +
		"upserted  4         tenants/changed\n" +
		"upserted  4         tenants/gone\n" +
		"upserted  4         tenants/same\n" +
		"deleted   5         tenants/old\n" +
		"upserted  9         tenants/changed\n" +
		"upserted  9         tenants/new\n" +
		"deleted   9         tenants/gone\n"
	if out != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
	said := fmt.Sprintf("shunt get: reconnected to manager %s: %s ended the stream\n"+
		"shunt get: manager %s: unauthenticated: the access token was revoked\n", fakes[1].url, fakes[0].url, fakes[1].url)
	if fault != said || code != exitFailed {
		t.Errorf("exit code %d and\n%swant\n%s", code, fault, said)
	}
}

// TestServersOfAConfiguration reads one text, several URLs in it, and a list.
func TestServersOfAConfiguration(t *testing.T) {
	for text, want := range map[string]string{
		"server: https://a:1/":                       "https://a:1",
		"server: https://a:1, https://b:2":           "https://a:1 https://b:2",
		"server: [https://a:1, 'https://[::1]:2']":   "https://a:1 https://[::1]:2",
		"server: [https://a:1, https://a:1/]":        "https://a:1",
		"server: [https://a:1, b]":                   `error server: "b": must be a URL`,
		"server: []":                                 `error server: "": must be a URL`,
		"server: {a: b}":                             "error server: must be a URL, or a list of URLs",
		"ca: x":                                      `error server: "": must be a URL`,
		"server: https://a:1,":                       `error server: "": must be a URL`,
		"server: https://person:password@a:1/":       `error "https://person:xxxxx@a:1": must be a URL`,
		"server: [https://a:1, https://b:2/call?x=]": "error must be a URL",
	} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := (&globals{config: file}).load()
		fault, fails := strings.CutPrefix(want, "error ")
		switch {
		case fails && (err == nil || !strings.Contains(err.Error(), fault)):
			t.Errorf("%s: error %v, want %s", text, err, fault)
		case !fails && (err != nil || strings.Join(c.Server, " ") != want):
			t.Errorf("%s: %+v, %v, want %s", text, c, err, want)
		}
	}
}

// TestEventsAreToldOnce checks that a restarted stream delivers new events, even those older than
// the newest.
func TestEventsAreToldOnce(t *testing.T) {
	fake := startFake(t)
	fake.happen()
	late := fake.events[0]
	fake.events = fake.events[1:]
	tail := &eventTail{}
	told := func() (n int) {
		tail.resume(&apiv1.EventsRequest{})
		for _, e := range fake.events {
			if tail.fresh(e) {
				n++
			}
		}
		return n
	}
	if n := told(); n != len(fake.events) {
		t.Errorf("%d told at first, want all %d", n, len(fake.events))
	}
	fake.events = append(fake.events, late)
	if n := told(); n != 1 {
		t.Errorf("%d told afterwards, want the late one", n)
	}
	if since := tail.resume(&apiv1.EventsRequest{}).GetSince().AsTime(); !since.Equal(tail.newest.Add(-eventOverlap)) {
		t.Errorf("the next stream begins at %s", since)
	}
}
