package manager_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/manager"
)

// TestRestoreNamesForeignAddresses restores a backup with a service whose addresses another Tenant
// listed later, and checks that the fields are reported. A backup without such a service has no
// fault.
func TestRestoreNamesForeignAddresses(t *testing.T) {
	r := newRig(t, nil)
	r.apply(network(), hostNode(1), hostNode(2), owning("media", "2", "32"), ofTenant("shop-web", "shop", 17))
	faults, err := manager.ForeignInBackup(r.backup())
	if err != nil || len(faults) != 0 {
		t.Fatalf("nothing foreign: %v, %v", faults, err)
	}
	// Bypass the rules, as a build without them would.
	a := r.backup()
	for i := range a.Keys {
		if !strings.HasSuffix(a.Keys[i].Name, "shop-web") {
			continue
		}
		a.Keys[i].Value = bytes.ReplaceAll(a.Keys[i].Value, []byte("10.20.1.11"), []byte("10.20.2.11"))
		a.Keys[i].Value = bytes.ReplaceAll(a.Keys[i].Value, []byte("203.0.113.17"), []byte("203.0.113.33"))
	}
	faults, err = manager.ForeignInBackup(a)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range faults {
		got = append(got, f.String())
	}
	want := []string{
		"services/shop-web: vip[0]: 203.0.113.33: must not be inside the vips of another Tenant, and tenants/media has it and does not share it with tenant shop",
		"services/shop-web: endpoints[0].backends[0].dip[0]: 10.20.2.11: must not be inside the dips of another Tenant, and tenants/media has it and does not share it with tenant shop",
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("got %q\nwant %q", got, w)
		}
	}
	r.restore(a)
	stream, err := r.admin.Events(t.Context(), connect.NewRequest(&apiv1.EventsRequest{Kind: "Manager"}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	told := false
	for stream.Receive() {
		for _, e := range stream.Msg().GetEvents() {
			told = told || e.GetReason() == "Restored" && strings.Contains(e.GetMessage(), "fields that name addresses of others: ") && strings.Contains(e.GetMessage(), "services/shop-web: ")
		}
	}
	if err := stream.Err(); err != nil || !told {
		t.Errorf("event told %t, %v", told, err)
	}
}
