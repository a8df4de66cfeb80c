package lb_test

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestFieldsOfOtherKinds: each kind of check has its own fields and the shared ones.
func TestFieldsOfOtherKinds(t *testing.T) {
	const all = "Kind Port Address Interval Fast Timeout Jitter Rise Fall Initial Through Engine"
	http, tls := "Path Method Host Headers Status Body Version TLS", " Verify ServerName CA"
	for kind, fields := range map[string]string{
		lb.CheckTCP: "Send Expect SendHex ExpectHex", lb.CheckUDP: "Send Expect SendHex ExpectHex", lb.CheckHTTP: http, lb.KindHTTPS: http + tls, lb.CheckICMP: "",
		lb.CheckGRPC: "Service TLS", lb.CheckDNS: "Name Type Answer", lb.CheckExternal: "Program Arguments",
	} {
		own := strings.Fields(all + " " + fields)
		for i := range reflect.TypeFor[lb.Check]().NumField() {
			c := lb.Check{Kind: kind}
			if kind == lb.KindHTTPS {
				c.Kind, c.TLS = lb.CheckHTTP, true
			}
			c.SetDefaults()
			name := reflect.TypeFor[lb.Check]().Field(i).Name
			if slices.Contains(strings.Fields(all), name) {
				continue
			}
			switch f := reflect.ValueOf(&c).Elem().Field(i); f.Kind() {
			case reflect.Bool:
				f.SetBool(true)
			case reflect.String:
				f.SetString("/x")
			default:
				t.Fatalf("%s: a field of one kind that is no text", name)
			}
			s := validService()
			first(s).Health.Checks = []lb.Check{c}
			refused := strings.Contains(texts(lb.Validate(s)), "must have no fields of other kinds")
			if refused == slices.Contains(own, name) {
				t.Errorf("%s: %s: refused: %v", kind, name, refused)
			}
		}
	}
}

// TestAddressOfChecks: the address of a check must be where backends may be.
func TestAddressOfChecks(t *testing.T) {
	s, n := validService(), validNetwork()
	check := &first(s).Health.Checks[0]
	check.Address = first(s).Backends[0].DIPs[0]
	if v := lb.ValidateState([]lb.Object{s, n}); v != nil {
		t.Error(texts(v))
	}
	check.Address = netip.MustParseAddr("192.0.2.1")
	first(s).Health.Checks = append(first(s).Health.Checks, first(s).Health.Checks[0])
	v := lb.ValidateState([]lb.Object{s, n})
	if len(v) != 2 || !strings.HasPrefix(v[1].String(), "services/web: endpoints[0].health.checks[1].address: 192.0.2.1: must be inside ") {
		t.Error(texts(v))
	}
}

// TestStatusSetsAreCanonical: equal sets of statuses are equal checks.
func TestStatusSetsAreCanonical(t *testing.T) {
	for _, status := range []lb.StatusSet{"304,200", "200-250,251", "200-300,250", "", "200-200", "99", "200,"} {
		s := validService()
		web(s).Status = status
		v := lb.Validate(s)
		if len(v) != 1 || !strings.HasPrefix(v[0].String(), "services/web: endpoints[0].health.http.status: ") {
			t.Errorf("%q: %s", status, texts(v))
		}
	}
}
