package manager_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
)

// rotateCA calls RotateCA with the current administrator's configuration.
func (r *rig) rotateCA(req *apiv1.RotateCARequest) (*apiv1.RotateCAResponse, error) {
	r.t.Helper()
	r.admin = shuntv1connect.NewManagerClient(r.httpClient(r.adminTLS()), "https://"+r.addr)
	res, err := r.admin.RotateCA(r.t.Context(), connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// caUntil repeats RotateCA like the command line, and restarts the manager when it requests that,
// until the response fits.
func (r *rig) caUntil(fits func(*apiv1.RotateCAResponse) bool) *apiv1.RotateCAResponse {
	r.t.Helper()
	for {
		r.startAnew()
		res, err := r.rotateCA(&apiv1.RotateCARequest{})
		if err != nil {
			continue // it is restarting
		}
		if fits(res) {
			return res
		}
		next := map[string]string{"trust": "issue", "issue": "retire"}[res.GetPhase()]
		if next != "" && res.GetThrough() != next {
			_, _ = r.rotateCA(&apiv1.RotateCARequest{Through: next})
		}
	}
}

// startAnew restarts the manager if it ended to accept other CAs.
func (r *rig) startAnew() {
	r.t.Helper()
	select {
	case err := <-r.ended:
		if !errors.Is(err, manager.ErrStartAnew) {
			r.t.Fatalf("manager ended: %v", err)
		}
		r.stop()
		r.start()
	case <-time.After(20 * time.Millisecond):
	}
}

func caDone(res *apiv1.RotateCAResponse) bool { return res.GetPhase() == "done" }

// TestRotateCANodes checks that nodes follow a replacement of the CA over their streams. A node
// that was down and left out is refused, as the progress and an event report, until it gets a new
// token. Keys in the store are sealed again and stay the same.
func TestRotateCANodes(t *testing.T) {
	r := newRig(t, nil)
	r.apply(network(), muxNode(1), muxNode(2), hostNode(1), carrying(1))
	mux1, mux2, host1 := r.join("mux1", "mux"), r.join("mux2", "mux"), r.join("host1", "host")
	for _, n := range []*node{mux1, mux2, host1} {
		n.until("a plan", func(p plan.Plan) bool { return p.Revision > 0 })
	}
	keys, former := r.keys("web"), r.ca()
	storeKey := r.secret("store.key")
	mux2.stop()
	r.status("mux2", func(st *apiv1.NodeStatus) bool { return !st.GetConnected() })
	r.status("mux1", func(st *apiv1.NodeStatus) bool { return st.GetTrust() != nil })
	r.status("host1", func(st *apiv1.NodeStatus) bool { return st.GetTrust() != nil })

	_, err := r.rotateCA(&apiv1.RotateCARequest{Begin: true})
	if fields := faultFields(t, err); !slices.Equal(fields, []string{"nodes/mux2"}) {
		t.Fatalf("with a node that is away: %v, the refusal names %q", err, fields)
	}
	if _, err := r.rotateCA(&apiv1.RotateCARequest{Begin: true, Without: []string{"mux2"}}); err != nil {
		t.Fatal(err)
	}
	r.caUntil(func(res *apiv1.RotateCAResponse) bool { return res.GetPhase() == "issue" })
	if err := r.admit("m2", "none", r.token("m2", "manager")); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("a manager joins while there are secrets of two CAs: %v", err)
	}
	if stream, err := r.admin.Backup(t.Context(), connect.NewRequest(&apiv1.BackupRequest{})); err == nil && stream.Receive() {
		t.Error("a backup is made while there are secrets of two CAs")
	}
	r.caUntil(caDone)

	if next := r.ca(); bytes.Equal(next.Cert.Raw, former.Cert.Raw) || bytes.Equal(storeKey, r.secret("store.key")) {
		t.Error("the CA or the store's key is the former one")
	}
	want := []uint64{pki.Fingerprint(r.ca().Cert)}
	for _, name := range []string{"mux1", "host1"} {
		st := r.status(name, func(st *apiv1.NodeStatus) bool { return st.GetConnected() && st.GetTrust() != nil })
		if !slices.Equal(st.GetTrust().GetTrusts(), want) || st.GetTrust().GetIssuer() != want[0] {
			t.Errorf("%s: %v, want the new CA alone, %v", name, st.GetTrust(), want)
		}
	}
	r.stop()
	r.start()
	after := r.keys("web")
	for i, k := range keys {
		if len(after) != len(keys) || after[i].GetScope() != k.GetScope() || len(after[i].GetEpochs()) != len(k.GetEpochs()) {
			t.Fatalf("keys after it: %v, want %v", after, keys)
		}
	}

	var progress agent.Progress
	mux2.progress = &progress
	mux2.run(r.addr, "mux2", "mux")
	for !strings.Contains(progress.State().Fault, "needs a new token") {
		<-time.After(20 * time.Millisecond)
	}
	r.eventUntil("TokenNeeded", "mux2")
	if err := os.WriteFile(filepath.Join(mux2.state, "token"), []byte(r.token("mux2", "mux")), 0o600); err != nil {
		t.Fatal(err)
	}
	r.status("mux2", func(st *apiv1.NodeStatus) bool { return st.GetConnected() && st.GetTrust().GetIssuer() == want[0] })
	if fault := progress.State().Fault; fault != "" {
		t.Errorf("after it joined again: %s", fault)
	}
}

// TestRotateCAOldAgent checks that an agent of a build that does not report its CAs is named, and
// that nothing begins.
func TestRotateCAOldAgent(t *testing.T) {
	r := newRig(t, nil)
	r.apply(network(), muxNode(1))
	s := r.raw("mux1", "mux")
	receive(t, s)
	if err := s.Send(&apiv1.NodeReport{Status: &apiv1.NodeStatus{Version: "v0"}}); err != nil {
		t.Fatal(err)
	}
	r.status("mux1", func(st *apiv1.NodeStatus) bool { return st.GetConnected() && st.GetLastSeen() != nil })
	_, err := r.rotateCA(&apiv1.RotateCARequest{Begin: true})
	if fields := faultFields(t, err); !slices.Equal(fields, []string{"nodes/mux1"}) {
		t.Fatalf("%v: the refusal names %q", err, fields)
	}
	if res, err := r.rotateCA(&apiv1.RotateCARequest{}); err != nil || res.GetPhase() != "" {
		t.Errorf("phase %q, %v: nothing must have begun", res.GetPhase(), err)
	}
}

// TestRotateCACaller checks that a certificate by the new CA has the name, role and tenant of its
// owner's present one, and that tokens cannot begin a replacement.
func TestRotateCACaller(t *testing.T) {
	r := newRig(t, nil)
	token := r.access("robot", "admin", "", time.Hour)
	_, err := r.bearer(token.GetToken()).RotateCA(t.Context(), connect.NewRequest(&apiv1.RotateCARequest{Begin: true, Force: true}))
	if connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("begun with an access token: %v", err)
	}
	for _, bad := range []*apiv1.RotateCARequest{{Through: "done"}, {Begin: true, Without: []string{"mux7"}}, {Csr: []byte("x")}} {
		if _, err := r.rotateCA(bad); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%v: %v, want an invalid argument", bad, err)
		}
	}
	if _, err := r.rotateCA(&apiv1.RotateCARequest{Begin: true}); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("while access tokens end: %v", err)
	}
	carol := r.person("carol", "admin", "", time.Hour)
	if _, err := r.rotateCA(&apiv1.RotateCARequest{Begin: true, Force: true}); err != nil {
		t.Fatal(err)
	}
	for {
		r.startAnew()
		_, err := r.rotateCA(&apiv1.RotateCARequest{Through: "retire"})
		if connect.CodeOf(err) == connect.CodeFailedPrecondition {
			break
		}
		if err == nil {
			t.Fatal("phase retire may begin before issue")
		}
	}
	// Advance until the new CA signs, and no further.
	for {
		res := r.caUntil(func(*apiv1.RotateCAResponse) bool { return true })
		if res.GetPhase() == "issue" {
			break
		}
		_, _ = r.rotateCA(&apiv1.RotateCARequest{Through: "issue"})
	}
	res, err := carol.among(r, r.adminTLS().RootCAs).RotateCA(t.Context(), connect.NewRequest(&apiv1.RotateCARequest{Csr: carol.request()}))
	if err != nil {
		t.Fatal(err)
	}
	carol.made.Certificate = res.Msg.GetCertificate()
	r.caUntil(caDone)
	list, err := carol.at(r).ListAccess(t.Context(), connect.NewRequest(&apiv1.ListAccessRequest{}))
	if err != nil || len(list.Msg.GetAccess()) != 1 || list.Msg.GetAccess()[0].GetName() != "carol" || list.Msg.GetAccess()[0].GetRole() != "admin" {
		t.Errorf("access after it: %v, %v: want carol's new certificate alone", list, err)
	}
}

// TestRotateCARevokedManager checks that the new secrets are not sealed for a revoked manager,
// although an external store lets it register.
func TestRotateCARevokedManager(t *testing.T) {
	ms := newMembers(t, 2, nil)
	leader := ms.rigs[0]
	if err := leader.revokeNamed("manager", "m2"); err != nil {
		t.Fatal(err)
	}
	if _, err := leader.rotateCA(&apiv1.RotateCARequest{Begin: true}); err != nil {
		t.Fatal(err)
	}
	kv, ok, _, err := ms.store.Get(t.Context(), "/shunt/ca-change")
	var stored apiv1.StoredCAChange
	if err != nil || !ok || proto.Unmarshal(kv.Value, &stored) != nil {
		t.Fatalf("the change in the store: %v %v", ok, err)
	}
	if got := slices.Collect(maps.Keys(stored.GetSealed())); !slices.Equal(got, []string{"m1"}) {
		t.Errorf("new secrets are sealed for %v, want m1 alone", got)
	}
}

// TestRotateCAWaitsForAManagerThatIsAway checks that a replacement waits for a manager that is
// down, also with an external store, where such a manager is not registered.
func TestRotateCAWaitsForAManagerThatIsAway(t *testing.T) {
	ms := newMembers(t, 2, nil)
	leader := ms.rigs[0]
	if _, err := leader.rotateCA(&apiv1.RotateCARequest{Begin: true}); err != nil {
		t.Fatal(err)
	}
	ms.rigs[1].stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		res, err := leader.rotateCA(&apiv1.RotateCARequest{})
		if err == nil && slices.ContainsFunc(res.GetWaits(), func(w *apiv1.CAWait) bool {
			return w.GetKind() == "manager" && w.GetName() == "m2" && w.GetReason() == "is away"
		}) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waits for %v, %v: want m2, which is away", res.GetWaits(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// secret reads a file of pki/.
func (r *rig) secret(name string) []byte {
	r.t.Helper()
	content, err := os.ReadFile(filepath.Join(r.path, "pki", name))
	if err != nil {
		r.t.Fatal(err)
	}
	return content
}

// eventUntil waits for an event with the reason about an object of the name.
func (r *rig) eventUntil(reason, name string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	s, err := r.admin.Events(ctx, connect.NewRequest(&apiv1.EventsRequest{Follow: true}))
	if err != nil {
		r.t.Fatal(err)
	}
	defer s.Close()
	for s.Receive() {
		for _, e := range s.Msg().GetEvents() {
			if e.GetReason() == reason && e.GetName() == name {
				return
			}
		}
	}
	r.t.Fatalf("no event %s of %s: %v", reason, name, s.Err())
}
