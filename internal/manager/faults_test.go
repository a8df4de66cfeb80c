package manager_test

import (
	"errors"
	"slices"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// faultFields returns the paths of the faults of a refused call.
func faultFields(t *testing.T, err error) (out []string) {
	t.Helper()
	var refused *connect.Error
	if !errors.As(err, &refused) {
		t.Fatalf("error %v: must be a refusal", err)
	}
	for _, d := range refused.Details() {
		msg, err := d.Value()
		if v, ok := msg.(*apiv1.Violation); err == nil && ok {
			out = append(out, v.GetField())
		}
	}
	return out
}

// TestFaultsByTheRequestsNumbers checks the paths of faults when other sources of an object change
// the order of its items. Faults number the items of the request as the request does, and name
// other items by their keys.
func TestFaultsByTheRequestsNumbers(t *testing.T) {
	r := newOwnerRig(t)
	r.says("", file(1))
	r.says("scaler", &apiv1.Service{Name: "web", Endpoints: []*apiv1.Endpoint{{Protocol: "tcp", Port: "80", Backends: []*apiv1.Backend{
		{Dip: []string{"10.20.7.11"}, Port: 8080, Host: "10.20.7.1"},
	}}}})

	s := file(3, 1)
	s.Endpoints[0].Backends[0].Host = "192.0.2.1"
	_, err := r.say("", false, s)
	if got, want := faultFields(t, err), []string{"services/web: endpoints[0].backends[0].host"}; !slices.Equal(got, want) {
		t.Errorf("between objects: %q, want %q", got, want)
	}

	s = file(3, 1)
	weight := uint32(1001)
	s.Endpoints[0].Backends[0].Weight = &weight
	_, err = r.say("", false, s)
	if got, want := faultFields(t, err), []string{"services/web: endpoints[0].backends[0].weight"}; !slices.Equal(got, want) {
		t.Errorf("of the object by itself: %q, want %q", got, want)
	}

	// The scaler's backend cannot have the VIP's address.
	s = file(1)
	s.Vip = []string{"203.0.113.10", "10.20.7.11"}
	_, err = r.say("", false, s)
	if got, want := faultFields(t, err), []string{"services/web: endpoints[tcp/80].backends[10.20.7.11:8080].dip[0]"}; !slices.Equal(got, want) {
		t.Errorf("of an item that the request does not have: %q, want %q", got, want)
	}
}
