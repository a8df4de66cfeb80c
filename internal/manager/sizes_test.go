package manager_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/store"
)

// post sends a JSON body with a token and returns the status and the start of the answer.
func (r *rig) post(token, procedure, encoding string, body io.Reader) (int, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, "https://"+r.addr+procedure, body)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	if encoding != "" {
		req.Header.Set("Content-Encoding", encoding)
	}
	res, err := r.httpClient(r.as(nil, "", "none")).Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1000))
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

func squeezed(t *testing.T, text string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// TestRequestsAreNoLargerThanNeeded: callers that may only read, or change only a tenant's objects,
// cannot make the manager hold much memory.
func TestRequestsAreNoLargerThanNeeded(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), &lb.Tenant{Name: "shop"})
	viewer, tenant, admin := r.access("v", "viewer", "", 0).Token, r.access("t", "tenant", "shop", 0).Token, r.access("a", "admin", "", 0).Token
	long := func(n int) string { return `{"kind":"` + strings.Repeat("a", n) + `"}` }
	objects := `{"objects":[` + strings.Repeat(" ", 9<<20) + `]}`
	for name, c := range map[string]struct {
		token, procedure, encoding string
		body                       io.Reader
		want                       int
	}{
		"a question":                       {viewer, shuntv1connect.ManagerGetProcedure, "", strings.NewReader(`{"kind":"Network"}`), http.StatusOK},
		"a compressed question":            {viewer, shuntv1connect.ManagerGetProcedure, "gzip", squeezed(t, `{"kind":"Network"}`), http.StatusOK},
		"a long question":                  {viewer, shuntv1connect.ManagerGetProcedure, "", strings.NewReader(long(100_000)), http.StatusTooManyRequests},
		"a long compressed question":       {viewer, shuntv1connect.ManagerGetProcedure, "gzip", squeezed(t, long(100_000)), http.StatusTooManyRequests},
		"a long question to the leader":    {viewer, shuntv1connect.ManagerStatusProcedure, "", strings.NewReader(long(100_000)), http.StatusTooManyRequests},
		"a tenant's large change":          {tenant, shuntv1connect.ManagerApplyProcedure, "", strings.NewReader(objects), http.StatusTooManyRequests},
		"a tenant's compressed change":     {tenant, shuntv1connect.ManagerApplyProcedure, "gzip", squeezed(t, objects), http.StatusNotImplemented},
		"an administrator's large change":  {admin, shuntv1connect.ManagerApplyProcedure, "", strings.NewReader(objects), http.StatusBadRequest},
		"an administrator's large deletes": {admin, shuntv1connect.ManagerDeleteProcedure, "gzip", squeezed(t, objects), http.StatusBadRequest},
	} {
		if status, text := r.post(c.token, c.procedure, c.encoding, c.body); status != c.want {
			t.Errorf("%s: status %d, want %d: %.200s", name, status, c.want, text)
		}
	}
}

// TestFewFaultsAreTold: the answer to a request with only faults is not a hundred times as large as
// the request.
func TestFewFaultsAreTold(t *testing.T) {
	r := newRig(t, store.NewMemory())
	req := &apiv1.ApplyRequest{}
	for range 50_000 {
		req.Objects = append(req.Objects, &apiv1.Object{})
	}
	_, err := r.admin.Apply(t.Context(), connect.NewRequest(req))
	if got := len(violations(t, err)); got != 1000 {
		t.Errorf("%d faults are told: %.200v", got, err)
	}
	_, err = r.admin.Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: strings.Repeat("x", 50_000)}))
	if err == nil || len(err.Error()) > 2000 || !strings.Contains(err.Error(), "x…: must be") {
		t.Errorf("a wrong kind of 50,000 bytes: %.200v", err)
	}
}

// TestTenantsWaitForThemselves: two changes of a tenant are read concurrently. A third waits, and
// no other tenant does.
func TestTenantsWaitForThemselves(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), &lb.Tenant{Name: "shop"}, &lb.Tenant{Name: "bank"})
	shop, bank := r.access("s", "tenant", "shop", 0).Token, r.access("b", "tenant", "bank", 0).Token
	slow := make([]*slowBody, 2)
	ended := make(chan int, 3)
	start := func(body io.Reader) {
		go func() {
			status, _ := r.post(shop, shuntv1connect.ManagerApplyProcedure, "", body)
			ended <- status
		}()
	}
	for i := range slow {
		slow[i] = newSlowBody()
		start(slow[i])
		select {
		case <-slow[i].asked:
		case status := <-ended:
			t.Fatalf("a change ended with status %d before its body did", status)
		}
	}
	third := newSlowBody()
	close(third.rest)
	start(third)
	if status, text := r.post(bank, shuntv1connect.ManagerApplyProcedure, "", strings.NewReader(`{}`)); status != http.StatusBadRequest {
		t.Errorf("another tenant: status %d: %s", status, text)
	}
	select {
	case status := <-ended:
		t.Fatalf("a change ended with status %d before there was a place for it", status)
	default:
	}
	for _, b := range slow {
		close(b.rest)
	}
	for range 3 {
		if status := <-ended; status != http.StatusBadRequest {
			t.Errorf("status %d: must be 400, as nothing was asked for", status)
		}
	}
}

// slowBody is an empty JSON object that ends when rest is closed. asked is closed when the manager
// has started reading. The part before the end is too large for the windows of HTTP/2 (1 MiB each).
type slowBody struct {
	asked, rest chan struct{}
	sent        int
}

// slowBytes is the size of the body before its end.
const slowBytes = 4 << 20

func newSlowBody() *slowBody { return &slowBody{asked: make(chan struct{}), rest: make(chan struct{})} }

func (b *slowBody) Read(p []byte) (int, error) {
	if left := slowBytes - b.sent; left > 0 {
		n := min(left, len(p))
		for i := range p[:n] {
			p[i] = ' '
		}
		if b.sent == 0 {
			p[0] = '{'
		}
		b.sent += n
		return n, nil
	}
	if b.sent++; b.sent > slowBytes+1 {
		return 0, io.EOF
	}
	close(b.asked)
	<-b.rest
	return copy(p, "}"), nil
}

// TestTenantsCallsAreCounted: a tenant that opens streams without end is refused, and no other
// tenant is. A call that ends makes room.
func TestTenantsCallsAreCounted(t *testing.T) {
	const most = 1000
	r := newRig(t, store.NewMemory())
	r.apply(network(), &lb.Tenant{Name: "shop"}, &lb.Tenant{Name: "bank"})
	var shop []shuntv1connect.ManagerClient // one caller may have a fifth of them
	for i := range 5 {
		shop = append(shop, r.bearer(r.access(fmt.Sprint("s", i), "tenant", "shop", 0).Token))
	}
	bank := r.bearer(r.access("b", "tenant", "bank", 0).Token)
	open := func(c shuntv1connect.ManagerClient) (*connect.ServerStreamForClient[apiv1.WatchResponse], error) {
		s, err := c.Watch(t.Context(), connect.NewRequest(&apiv1.WatchRequest{Kind: "Service"}))
		if err == nil && !s.Receive() {
			err = s.Err()
		}
		return s, err
	}
	var streams []*connect.ServerStreamForClient[apiv1.WatchResponse]
	for i := range most - 1 { // the last one is for the request below
		s, err := open(shop[i%len(shop)])
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	// another token and connection of the same tenant
	other := r.bearer(r.access("other", "tenant", "shop", 0).Token)
	last, err := open(other)
	if err != nil {
		t.Fatal(err)
	}
	_, err = other.Version(t.Context(), connect.NewRequest(&apiv1.VersionRequest{}))
	if want(err, connect.CodeResourceExhausted, "tenants/shop: too many calls at once: must be at most 1000") != nil {
		t.Errorf("one more: %v", err)
	}
	if _, err := open(bank); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	last.Close()
	for {
		_, err := other.Version(t.Context(), connect.NewRequest(&apiv1.VersionRequest{}))
		if err == nil {
			break
		}
		if connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Fatal(err)
		}
	}
	for _, s := range streams {
		s.Close()
	}
}

// TestStreamsOfACallerAreCounted: a caller that opens streams without end is refused, and the
// refusal is audited. Other callers, nodes and ended streams are not affected.
func TestStreamsOfACallerAreCounted(t *testing.T) {
	const most = 200
	r := newRig(t, store.NewMemory())
	r.apply(network(), muxNode(1))
	wall, other := r.bearer(r.access("wall", "viewer", "", 0).Token), r.bearer(r.access("other", "viewer", "", 0).Token)
	watch := func(c shuntv1connect.ManagerClient) (close func() error, err error) {
		s, err := c.Watch(t.Context(), connect.NewRequest(&apiv1.WatchRequest{Kind: "Network"}))
		if err == nil && !s.Receive() {
			err = s.Err()
		}
		return s.Close, err
	}
	follow := func(c shuntv1connect.ManagerClient) (close func() error, err error) {
		s, err := c.Events(t.Context(), connect.NewRequest(&apiv1.EventsRequest{Follow: true}))
		if err == nil && !s.Receive() {
			err = s.Err()
		}
		return s.Close, err
	}
	var ends []func() error
	for i := range most {
		open := watch
		if i%2 == 1 {
			open = follow
		}
		end, err := open(wall)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	const refusal = "token wall: too many streams at once: must be at most 200"
	for what, open := range map[string]func(shuntv1connect.ManagerClient) (func() error, error){"watch": watch, "events": follow} {
		if _, err := open(wall); want(err, connect.CodeResourceExhausted, refusal) != nil {
			t.Errorf("one %s more: %v", what, err)
		}
	}
	for _, e := range r.refusals(2) {
		if e.GetWho() != "token wall" || e.GetRefused() != refusal {
			t.Errorf("the audit log has %v", e)
		}
	}
	if _, err := watch(other); err != nil {
		t.Errorf("another caller: %v", err)
	}
	if up := receive(t, r.raw("mux1", "mux")); !up.Snapshot {
		t.Errorf("a node hears %v", up)
	}
	ends[0]()
	for {
		if _, err := watch(wall); err == nil {
			break
		} else if connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Fatal(err)
		}
	}
	for _, end := range ends {
		end()
	}
}

// TestReportThatIsTooLargeIsLeftOut: the stream continues with the node's next report, and an event
// is recorded. A mux may send larger reports than a host.
func TestReportThatIsTooLargeIsLeftOut(t *testing.T) {
	r := newRigAt(t, store.NewMemory(), clock.System{})
	r.apply(network(), muxNode(1), hostNode(1))
	large := &apiv1.NodeStatus{Members: []*apiv1.MemberStatus{{LastCheck: strings.Repeat("x", 17<<20)}}}
	for name, want := range map[string]string{"mux1": "Node mux1 NodeConnected", "host1": "Node host1 NodeConnected, Node host1 ReportRefused"} {
		s := r.raw(name, name[:len(name)-1])
		receive(t, s)
		for _, status := range []*apiv1.NodeStatus{large, large, {Error: "the last word"}} {
			if err := s.Send(&apiv1.NodeReport{Status: status}); err != nil {
				t.Fatal(err)
			}
		}
		_, before := happens(t, r.admin, &apiv1.EventsRequest{Kind: "Node", Name: name}, func(e *apiv1.Event) bool {
			return e.GetReason() == "PlanRefused" && strings.Contains(e.GetMessage(), "the last word")
		})
		before = slices.DeleteFunc(before, func(e string) bool { return strings.HasSuffix(e, " Applied") || strings.HasSuffix(e, " PlanStale") })
		if got := strings.Join(before, ", "); got != want {
			t.Errorf("%s: %q happened before its last word, want %q", name, got, want)
		}
	}
}
