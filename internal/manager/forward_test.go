package manager_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// protocols are the protocols that a client may use.
var protocols = map[string][]connect.ClientOption{
	"connect":  nil,
	"grpc":     {connect.WithGRPC()},
	"grpc-web": {connect.WithGRPCWeb()},
	"json":     {connect.WithProtoJSON()},
	"get":      {connect.WithHTTPGet()},
	"gzip":     {connect.WithSendGzip(), connect.WithGRPC()},
}

// follower returns a member that does not lead.
func (ms *members) follower() *rig {
	leader := ms.leader(1)
	for _, r := range ms.rigs {
		if r != leader {
			return r
		}
	}
	ms.t.Fatal("there is no follower")
	return nil
}

// TestFollowersForward calls every procedure that only a leader can serve, in every protocol, at a
// member that does not lead.
func TestFollowersForward(t *testing.T) {
	ms := newMembers(t, 2, nil)
	r := ms.follower()
	r.apply(network(), hostNode(1), muxNode(1), web(1))
	mux := ms.leader(1).join("mux1", "mux")
	mux.until("its plan", func(p plan.Plan) bool { return len(p.Endpoints) == 1 })
	ctx := t.Context()
	for name, opts := range protocols {
		hc := r.httpClient(r.adminTLS())
		c := shuntv1connect.NewManagerClient(hc, "https://"+r.addr, opts...)
		n := shuntv1connect.NewNodeProtocolClient(r.httpClient(r.as(r.ca(), "", "none")), "https://"+r.addr, opts...)
		service := web(1)
		service.Name, service.VIPs = "other", []netip.Addr{netip.MustParseAddr("203.0.113.11")}
		var token string
		for _, call := range []struct {
			what string
			do   func() error
		}{
			{"apply", func() error {
				res, err := c.Apply(ctx, connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{convert.ToObject(service)}}))
				if err == nil && (res.Msg.Revision == 0 || len(res.Msg.Changes) != 1 || res.Msg.Changes[0].Action != apiv1.Change_ACTION_CREATED) {
					return fmt.Errorf("answer %v", res.Msg)
				}
				return err
			}},
			{"delete", func() error {
				_, err := c.Delete(ctx, connect.NewRequest(&apiv1.DeleteRequest{Objects: []*apiv1.ObjectRef{{Kind: "Service", Name: "other"}}}))
				return err
			}},
			{"delete what is not there", func() error {
				_, err := c.Delete(ctx, connect.NewRequest(&apiv1.DeleteRequest{Objects: []*apiv1.ObjectRef{{Kind: "Service", Name: "other"}}}))
				return want(err, connect.CodeNotFound, "services/other: not found")
			}},
			{"apply nonsense", func() error {
				_, err := c.Apply(ctx, connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{{}}}))
				if err == nil || len(violations(t, err)) == 0 {
					return fmt.Errorf("%v: must have violations", err)
				}
				return nil
			}},
			{"status", func() error {
				res, err := c.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{Node: "mux1"}))
				if err == nil && !res.Msg.Nodes[0].Connected {
					return fmt.Errorf("answer %v", res.Msg)
				}
				return err
			}},
			{"trace", func() error {
				res, err := c.Trace(ctx, connect.NewRequest(&apiv1.TraceRequest{Client: "198.51.100.11", ClientPort: 1, Vip: "203.0.113.10", Port: 80, Protocol: "tcp"}))
				if err == nil && res.Msg.Results[0].Verdict != "forwarded" {
					return fmt.Errorf("answer %v", res.Msg)
				}
				return err
			}},
			{"flows", func() error {
				res, err := c.Flows(ctx, connect.NewRequest(&apiv1.FlowsRequest{Vip: "203.0.113.10"}))
				if err == nil && len(res.Msg.Results[0].Flows) != 1 {
					return fmt.Errorf("answer %v", res.Msg)
				}
				return err
			}},
			{"create token", func() error {
				res, err := c.CreateToken(ctx, connect.NewRequest(&apiv1.CreateTokenRequest{Node: "mux2", Role: "mux"}))
				if err == nil {
					token = res.Msg.Token
				}
				return err
			}},
			{"join", func() error {
				res, err := n.Join(ctx, connect.NewRequest(&apiv1.JoinRequest{Token: token, Name: "mux2", Role: "mux", Csr: csr(t)}))
				if err == nil && len(res.Msg.Certificate) == 0 {
					return fmt.Errorf("answer %v", res.Msg)
				}
				return err
			}},
			{"join with a wrong token", func() error {
				_, err := n.Join(ctx, connect.NewRequest(&apiv1.JoinRequest{Token: token, Name: "mux3", Role: "mux", Csr: csr(t)}))
				return want(err, connect.CodePermissionDenied, "unknown, expired, used or for another node")
			}},
			{"access", func() error {
				res, err := c.CreateAccess(ctx, connect.NewRequest(&apiv1.CreateAccessRequest{Name: "ci", Role: "viewer"}))
				if err != nil {
					return err
				}
				list, err := c.ListAccess(ctx, connect.NewRequest(&apiv1.ListAccessRequest{}))
				if err != nil || len(list.Msg.Access) != 1 {
					return fmt.Errorf("list after creation: %v %w", list, err)
				}
				_, err = c.RevokeAccess(ctx, connect.NewRequest(&apiv1.RevokeAccessRequest{Id: res.Msg.Access.Id}))
				return err
			}},
		} {
			if err := call.do(); err != nil {
				t.Errorf("%s in %s: %v", call.what, name, err)
			}
		}
	}
}

// want checks an error of the API.
func want(err error, code connect.Code, text string) error {
	if connect.CodeOf(err) != code || !strings.Contains(fmt.Sprint(err), text) {
		return fmt.Errorf("%w: must be %v with %q", err, code, text)
	}
	return nil
}

// TestReadsAfterWrites checks that after one member has acknowledged a write, every other member
// returns it, and that nodes at any member receive it.
func TestReadsAfterWrites(t *testing.T) {
	ms := newMembers(t, 3, nil)
	ms.rigs[0].apply(network())
	for i := range 60 {
		at, from := ms.rigs[i%3], ms.rigs[(i+1)%3]
		if i%5 == 4 {
			from = at
		}
		name := fmt.Sprintf("host%d", i+1)
		rev := at.apply(hostNode(i + 1)).Revision
		res, err := from.admin.Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: "Node", Name: name}))
		if err != nil || res.Msg.Revision < rev {
			t.Fatalf("%s was written at %s and read at %s: %v %v", name, at.name, from.name, res, err)
		}
	}
}

// TestNobodyForgesAnIdentity sends the header in which managers forward identities, from other
// clients.
func TestNobodyForgesAnIdentity(t *testing.T) {
	ms := newMembers(t, 2, nil)
	ms.leader(1).apply(network())
	forged := callerHeader(t, map[string]any{"name": "admin", "role": "admin", "via": "certificate", "cert": ms.rigs[0].adminTLS().Certificates[0].Certificate[0]})
	ca := ms.rigs[0].ca()
	for _, r := range ms.rigs {
		for _, c := range []struct {
			who, name, role string
			want            connect.Code
		}{
			{"nobody", "", "none", connect.CodeUnauthenticated},
			{"a viewer", "eve", "viewer", connect.CodePermissionDenied},
			{"a node", "mux1", "mux", connect.CodePermissionDenied},
			{"a person called as a manager", "m1", "viewer", connect.CodePermissionDenied},
		} {
			admin := shuntv1connect.NewManagerClient(r.httpClient(r.as(ca, c.name, c.role)), "https://"+r.addr)
			req := connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{convert.ToObject(hostNode(1))}})
			req.Header().Set("Shunt-Caller", forged)
			if _, err := admin.Apply(t.Context(), req); connect.CodeOf(err) != c.want {
				t.Errorf("%s at %s: %v, want %v", c.who, r.name, err, c.want)
			}
		}
		// A manager forwards the calls of others, has no rights itself, and forwards only to the
		// leader.
		admin := shuntv1connect.NewManagerClient(r.httpClient(r.as(ca, "m9", "manager")), "https://"+r.addr)
		req := connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{convert.ToObject(hostNode(1))}})
		if _, err := admin.Apply(t.Context(), req); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("a manager for itself: %v", err)
		}
		req.Header().Set("Shunt-Caller", "nonsense")
		if _, err := admin.Apply(t.Context(), req); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("a manager with a bad header: %v", err)
		}
		req.Header().Set("Shunt-Caller", forged)
		_, err := admin.Apply(t.Context(), req)
		if leads := r == ms.leader(1); leads != (err == nil) || !leads && connect.CodeOf(err) != connect.CodeUnavailable {
			t.Errorf("a manager for an administrator at %s: %v", r.name, err)
		}
	}
}

// TestRightsHoldBehindFollowers checks that the rights of a viewer and the deletion of a node also
// apply when another member forwards the call.
func TestRightsHoldBehindFollowers(t *testing.T) {
	ms := newMembers(t, 2, nil)
	r := ms.follower()
	r.apply(network(), muxNode(1))
	viewer := shuntv1connect.NewManagerClient(r.httpClient(r.as(r.ca(), "eve", "viewer")), "https://"+r.addr)
	if _, err := viewer.Status(t.Context(), connect.NewRequest(&apiv1.StatusRequest{})); err != nil {
		t.Errorf("status for a viewer: %v", err)
	}
	if _, err := viewer.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{convert.ToObject(hostNode(1))}})); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("apply for a viewer: %v", err)
	}
	access, err := r.admin.CreateAccess(t.Context(), connect.NewRequest(&apiv1.CreateAccessRequest{Name: "ci", Role: "viewer"}))
	if err != nil {
		t.Fatal(err)
	}
	bearer := shuntv1connect.NewManagerClient(r.httpClient(r.as(r.ca(), "", "none")), "https://"+r.addr)
	status := func() error {
		req := connect.NewRequest(&apiv1.StatusRequest{})
		req.Header().Set("Authorization", "Bearer "+access.Msg.Token)
		_, err := bearer.Status(t.Context(), req)
		return err
	}
	if err := status(); err != nil {
		t.Errorf("status with a token: %v", err)
	}
	if _, err := r.admin.RevokeAccess(t.Context(), connect.NewRequest(&apiv1.RevokeAccessRequest{Id: access.Msg.Access.Id})); err != nil {
		t.Fatal(err)
	}
	if err := status(); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("status with a revoked token: %v", err)
	}
	node := shuntv1connect.NewNodeProtocolClient(r.httpClient(r.as(r.ca(), "mux1", "mux")), "https://"+r.addr)
	if _, err := node.Join(t.Context(), connect.NewRequest(&apiv1.JoinRequest{Name: "mux1", Role: "mux", Csr: csr(t)})); err != nil {
		t.Errorf("renewing a certificate: %v", err)
	}
	r.delete("Node", "mux1")
	if _, err := node.Join(t.Context(), connect.NewRequest(&apiv1.JoinRequest{Name: "mux1", Role: "mux", Csr: csr(t)})); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("renewing the certificate of a deleted node: %v", err)
	}
}

// TestForwardedCallsOutliveLeaders stops one leader after another while calls continue at a member
// that stays. Reads never fail. Writes fail only when their result is unknown, or when their leader
// was replaced in the middle.
func TestForwardedCallsOutliveLeaders(t *testing.T) {
	ms := newMembers(t, 3, nil)
	ms.leader(1).apply(network())
	stays := ms.follower()
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := stays.admin.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{})); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("status: %w", err)
				return
			}
			_, err := stays.tryApply(hostNode(1 + i%200))
			if err != nil && !strings.Contains(err.Error(), "unknown") && !strings.Contains(err.Error(), "not yet published") && !strings.Contains(err.Error(), manager.ErrFenced.Error()) {
				failed <- fmt.Errorf("apply: %w", err)
				return
			}
		}
	}()
	for epoch := int64(2); epoch < 6; epoch++ {
		if was := ms.leader(epoch - 1); was == stays {
			ms.lapse()
		} else {
			was.stop()
			ms.leader(epoch)
			was.start()
		}
		ms.leader(epoch)
	}
	cancel()
	if err := <-failed; err != nil {
		t.Error(err)
	}
}

// TestNoLeader checks that a member without a leader reports so in time, and serves the requests
// that it can.
func TestNoLeader(t *testing.T) {
	ms := &members{t: t, store: store.NewMemory()}
	first := newRig(t, ms.store)
	first.apply(network())
	path := t.TempDir()
	copySecrets(t, first.path, path)
	r := &rig{t: t, store: lazy{ms.store}, name: "m2", path: path}
	r.start()
	t.Cleanup(func() { r.stop() })
	first.stop()
	if _, err := r.tryApply(hostNode(1)); connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), "no manager leads at present") {
		t.Errorf("apply without a leader: %v", err)
	}
	if res, err := r.admin.Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: "Network"})); err != nil || len(res.Msg.Objects) != 1 {
		t.Errorf("get without a leader: %v %v", res, err)
	}
}

// TestLeaderOutOfReach checks a leader that is in the store but cannot be reached. A change is
// refused with the error for a missing leader, which guarantees clients that it had no effect.
func TestLeaderOutOfReach(t *testing.T) {
	ms := &members{t: t, store: store.NewMemory()}
	first := newRig(t, ms.store)
	first.apply(network())
	path := t.TempDir()
	copySecrets(t, first.path, path)
	first.stop()
	raw, err := proto.Marshal(&apiv1.StoredLeader{Epoch: 1, Name: "m1", Address: first.addr})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ms.store.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put("/shunt/leader", raw)}}); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, store: lazy{ms.store}, name: "m2", path: path}
	r.start()
	t.Cleanup(func() { r.stop() })
	const why = manager.NoLeader + ": manager m1, which led, cannot be reached: "
	if _, err := r.tryApply(hostNode(1)); connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), why) {
		t.Errorf("apply: %v, want %q", err, why)
	}
}

// lazy is a store that grants no leader lease, which is the shortest.
type lazy struct{ store.Store }

func (l lazy) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, error) {
	if ttl < 5*time.Second {
		return 0, errors.New("no lease today")
	}
	return l.Store.Grant(ctx, ttl)
}
