package manager_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// runOnce runs an agent that is expected to give up.
func (r *rig) runOnce(token, state string) error {
	file := filepath.Join(r.t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return agent.Run(r.t.Context(), agent.Options{Name: "mux1", Role: "mux", Manager: r.addr, TokenFile: file, StateDir: state, Log: logger(r.t)}, &node{})
}

func TestNodeThatCannotJoinSaysWhy(t *testing.T) {
	r := newRig(t, store.NewMemory())
	good := r.token("mux1", "mux")
	for name, c := range map[string]struct{ token, want string }{
		"not a token":       {"hello", "join token"},
		"for another node":  {r.token("mux2", "mux"), "unknown, expired, used or for another node"},
		"for another role":  {r.token("mux1", "host"), "unknown, expired, used or for another node"},
		"of another secret": {good[:len(good)-8] + "AAAAAAAA", "unknown, expired, used or for another node"},
		"an empty file":     {"", "join token"},
	} {
		if err := r.runOnce(c.token, t.TempDir()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	err := agent.Run(t.Context(), agent.Options{Name: "mux1", Role: "mux", Manager: r.addr, StateDir: t.TempDir()}, &node{})
	if err == nil || !strings.Contains(err.Error(), "token file is required") {
		t.Errorf("without a token: %v", err)
	}
}

func TestStateOfAnotherNodeIsRefused(t *testing.T) {
	r := newRig(t, store.NewMemory())
	mux := r.join("mux1", "mux")
	mux.until("a plan", func(plan.Plan) bool { return true })
	mux.stop()
	err := agent.Run(t.Context(), agent.Options{Name: "mux2", Role: "mux", Manager: r.addr, StateDir: mux.state}, &node{})
	if err == nil || !strings.Contains(err.Error(), "is the state of mux mux1") {
		t.Errorf("state of mux1 under the name mux2: %v", err)
	}
	for _, file := range []string{"node.pem", "plan.pb"} {
		if info, err := os.Stat(filepath.Join(mux.state, file)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v, want mode 0600", file, info, err)
		}
	}
}

// TestNodeMovesToAnotherCluster gives a node of one cluster the token of a new one, whose epoch is
// lower.
func TestNodeMovesToAnotherCluster(t *testing.T) {
	old := newRig(t, store.NewMemory())
	old.stop()
	old.start()
	old.apply(network(), hostNode(1), muxNode(1), web(1))
	mux := old.join("mux1", "mux")
	mux.until("the old cluster's plan", func(p plan.Plan) bool { return p.Epoch == 2 && len(p.Endpoints) == 1 })
	mux.stop()
	fresh := newRig(t, store.NewMemory())
	fresh.apply(network(), hostNode(1), hostNode(2), muxNode(1), web(1, 2))
	if err := os.WriteFile(filepath.Join(mux.state, "token"), []byte(fresh.token("mux1", "mux")), 0o600); err != nil {
		t.Fatal(err)
	}
	mux.run(fresh.addr, "mux1", "mux")
	mux.until("the new cluster's plan", func(p plan.Plan) bool { return p.Epoch == 1 && len(p.Endpoints[0].Members) == 2 })
}

// TestCertificateIsRenewed starts a node whose clock is past two thirds of its certificate's life.
func TestCertificateIsRenewed(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), muxNode(1))
	mux := r.join("mux1", "mux")
	mux.until("a plan", func(p plan.Plan) bool { return p.Node.Name != "" })
	mux.stop()
	before, err := os.ReadFile(filepath.Join(mux.state, "node.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(mux.state, "token")); err != nil {
		t.Fatal(err)
	}
	mux.clock = &handClock{ahead: pki.NodeLifetime * 3 / 4}
	mux.run(r.addr, "mux1", "mux")
	plans := 0 // the first is the stored plan, the second the manager's
	mux.until("a plan from the manager", func(plan.Plan) bool { plans++; return plans == 2 })
	if !renewed(t, mux, before) {
		t.Error("the certificate is still the old one")
	}
}

func renewed(t *testing.T, n *node, before []byte) bool {
	t.Helper()
	after, err := os.ReadFile(filepath.Join(n.state, "node.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return string(after) != string(before)
}
