package manager_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/store"
)

// mayCall repeats the access rules: every procedure of the API must be here with every role that
// may call it. A procedure open to clients without a certificate takes a join token in its request.
var mayCall = map[string]string{
	"Manager/Apply":             "admin tenant",
	"Manager/Delete":            "admin tenant",
	"Manager/Get":               "admin viewer tenant",
	"Manager/Watch":             "admin viewer tenant",
	"Manager/Status":            "admin viewer tenant",
	"Manager/Trace":             "admin viewer tenant",
	"Manager/Flows":             "admin viewer tenant",
	"Manager/HealthOf":          "admin viewer tenant",
	"Manager/AuditSNAT":         "admin viewer",
	"Manager/ReleaseSNAT":       "admin",
	"Manager/RotateKeys":        "admin tenant",
	"Manager/RotateRing":        "admin",
	"Manager/RotateCA":          "admin",
	"Manager/ListKeys":          "admin viewer tenant",
	"Manager/QUICConfig":        "admin tenant",
	"Manager/Events":            "admin viewer tenant",
	"Manager/Version":           "admin viewer tenant",
	"Manager/Members":           "admin viewer",
	"Manager/CreateToken":       "admin",
	"Manager/CreateAccess":      "admin",
	"Manager/CreateCertificate": "admin",
	"Manager/ListAccess":        "admin",
	"Manager/RevokeAccess":      "admin",
	"Manager/Audit":             "admin",
	"Manager/RemoveMember":      "admin",
	"Manager/Backup":            "admin",
	"NodeProtocol/Sync":         "mux host",
	"NodeProtocol/Join":         "mux host nobody",
	"MemberProtocol/Admit":      "nobody",
	"MemberProtocol/Relay":      "manager",
}

// procedures returns all procedures of the API, as "Service/Method".
func procedures() []string {
	var out []string
	for _, file := range []protoreflect.FileDescriptor{apiv1.File_v1_manager_proto, apiv1.File_v1_node_proto, apiv1.File_v1_member_proto} {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			for j := range s.Methods().Len() {
				out = append(out, string(s.Name())+"/"+string(s.Methods().Get(j).Name()))
			}
		}
	}
	return out
}

// callers holds all kinds of callers, by role, and some with ambiguous certificates.
var callers = map[string]func(*rig) *tls.Config{
	"nobody":         func(r *rig) *tls.Config { return r.as(nil, "", "none") },
	"tenant":         func(r *rig) *tls.Config { return r.certified(subject("tenant", "shop")) },
	"admin":          withRole("admin"),
	"viewer":         withRole("viewer"),
	"mux":            withRole("mux"),
	"host":           withRole("host"),
	"manager":        withRole("manager"),
	"root":           withRole("root"),
	"":               withRole(""),
	"tenant of none": withRole("tenant"),
	"tenant of two":  func(r *rig) *tls.Config { return r.certified(subject("tenant", "shop", "media")) },
	"tenant of one that is not there": func(r *rig) *tls.Config {
		return r.certified(subject("tenant", "gone"))
	},
	"two roles": func(r *rig) *tls.Config {
		return r.certified(pkix.Name{CommonName: "somebody", OrganizationalUnit: []string{"admin", "viewer"}})
	},
}

func withRole(role string) func(*rig) *tls.Config {
	return func(r *rig) *tls.Config { return r.as(r.ca(), "somebody", role) }
}

func subject(role string, tenants ...string) pkix.Name {
	return pkix.Name{CommonName: "somebody", OrganizationalUnit: []string{role}, Organization: tenants}
}

// TestEveryProcedureHasItsRoles calls every procedure as every caller. Requests that the
// authenticator refuses have not been read: the body is not a valid message, and admitted callers
// get that error instead. Each refusal is in the audit log with the caller, the call, the address
// and the reason.
func TestEveryProcedureHasItsRoles(t *testing.T) {
	for role, config := range callers {
		t.Run(role, func(t *testing.T) {
			r := newRigAt(t, store.NewMemory(), clock.System{})
			r.apply(tenant("shop", 0), tenant("media", 0))
			hc, refused := r.httpClient(config(r)), map[string]string{}
			for _, procedure := range procedures() {
				roles, ruled := mayCall[procedure]
				if !ruled {
					t.Fatalf("%s has no rule: say in rights who may call it, and here", procedure)
				}
				may := slices.Contains(strings.Fields(roles), role)
				got, said := passes(t, hc, r.addr, procedure)
				if got != may {
					t.Errorf("%s: passes the gate: %v, want %v", procedure, got, may)
				}
				if !got {
					refused[path.Base(procedure)] = said
				}
			}
			for _, e := range r.refusals(len(refused)) {
				who, as := "somebody", certificateRoles[role]
				if role == "nobody" {
					who = "nobody"
				}
				if said := refused[e.GetCall()]; said == "" || e.GetRefused() != said {
					t.Errorf("%s: the audit log says %q, the caller heard %q", e.GetCall(), e.GetRefused(), said)
				}
				if from, _, err := net.SplitHostPort(e.GetFrom()); err != nil || e.GetWho() != who || e.GetRole() != as || !strings.HasPrefix(from, "127.") || e.GetCount() != 1 {
					t.Errorf("%s: the audit log has who %q, role %q, from %q, %d times, want %q, %q", e.GetCall(), e.GetWho(), e.GetRole(), e.GetFrom(), e.GetCount(), who, as)
				}
				delete(refused, e.GetCall())
			}
			for call, said := range refused {
				t.Errorf("%s was refused (%s), and is not in the audit log", call, said)
			}
		})
	}
	for procedure := range mayCall {
		if !slices.Contains(procedures(), procedure) {
			t.Errorf("%s is no procedure", procedure)
		}
	}
}

// certificateRoles maps callers to the roles in their certificates.
var certificateRoles = map[string]string{
	"admin": "admin", "viewer": "viewer", "mux": "mux", "host": "host", "manager": "manager", "root": "root", "tenant": "tenant",
	"tenant of none": "tenant", "tenant of two": "tenant", "tenant of one that is not there": "tenant",
}

// passes reports whether a call is admitted, and returns the error text if it is not.
func passes(t *testing.T, hc *http.Client, addr, procedure string) (passes bool, said string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("https://%s/shunt.v1.%s", addr, procedure), bytes.NewReader([]byte("no message")))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "text/plain")
	res, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return false, strings.TrimSpace(string(text))
	case http.StatusUnsupportedMediaType, http.StatusNotFound:
		// The service has it, or this manager does not serve it yet: no code below the
		// authenticator refused.
		return true, ""
	}
	t.Fatalf("%s: status %s", procedure, res.Status)
	return false, ""
}
