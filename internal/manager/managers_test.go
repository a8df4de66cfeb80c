package manager_test

import (
	"net"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// TestNodesLearnTheManagers: every node's plan follows the members that join and leave.
func TestNodesLearnTheManagers(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1))
	s := r.raw("host1", "host")
	own := receive(t, s).Upsert[0].GetNode().GetManagers()
	put := func(name, address string) []string {
		t.Helper()
		op := store.Delete("/shunt/managers/" + name)
		if address != "" {
			value, err := proto.Marshal(&apiv1.StoredManager{Name: name, Address: address})
			if err != nil {
				t.Fatal(err)
			}
			op = store.Put(op.Key, value)
		}
		if _, err := r.store.Txn(t.Context(), store.Txn{Ops: []store.Op{op}}); err != nil {
			t.Fatal(err)
		}
		return receive(t, s).Upsert[0].GetNode().GetManagers()
	}
	if got, want := put("zz2", "10.99.0.12:8443"), slices.Sorted(slices.Values(append(own, "10.99.0.12:8443"))); !slices.Equal(got, want) {
		t.Errorf("managers %v, want %v", got, want)
	}
	if got := put("zz2", ""); !slices.Equal(got, own) {
		t.Errorf("managers %v, want %v", got, own)
	}
}

// TestNodeGoesToTheNextManager: one of two managers accepts connections and sends nothing, as a
// frozen one does. It costs a node a handshake timeout, no matter where it begins.
func TestNodeGoesToTheNextManager(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), web(1))
	silent, err := net.Listen("tcp", loopback())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	dead := loopback()
	dead = dead[:len(dead)-1] + "1"
	nodes := map[string]*node{}
	for name, role := range map[string]string{"mux1": "mux", "host1": "host"} {
		nodes[name] = r.joinBy(dead+","+silent.Addr().String()+","+r.addr, name, role)
	}
	for name, n := range nodes {
		n.until("a plan of the manager that answers", func(p plan.Plan) bool { return p.Node.Name == name })
	}
}
