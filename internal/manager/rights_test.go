package manager_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/store"
)

// mayCall is who may call what, written once more: every procedure of the API must be here with every role it takes. A
// procedure with "nobody" takes a join token in its request.
var mayCall = map[string]string{
	"Manager/Apply":        "admin tenant",
	"Manager/Delete":       "admin tenant",
	"Manager/Get":          "admin viewer tenant",
	"Manager/Watch":        "admin viewer tenant",
	"Manager/Status":       "admin viewer tenant",
	"Manager/Trace":        "admin viewer tenant",
	"Manager/Flows":        "admin viewer tenant",
	"Manager/Events":       "admin viewer tenant",
	"Manager/Version":      "admin viewer tenant",
	"Manager/Members":      "admin viewer",
	"Manager/CreateToken":  "admin",
	"Manager/CreateAccess": "admin",
	"Manager/ListAccess":   "admin",
	"Manager/RevokeAccess": "admin",
	"Manager/Audit":        "admin",
	"Manager/RemoveMember": "admin",
	"Manager/Backup":       "admin",
	"NodeProtocol/Sync":    "mux host",
	"NodeProtocol/Join":    "mux host nobody",
	"MemberProtocol/Admit": "nobody",
	"MemberProtocol/Relay": "manager",
}

// procedures are all of the API, as "Service/Method".
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

// TestEveryProcedureHasItsRoles calls everything as everybody. What is refused by the gate has not been read: the body
// is no message, and whoever passes hears that instead.
func TestEveryProcedureHasItsRoles(t *testing.T) {
	r := newRig(t, store.NewMemory())
	ca := r.ca()
	who := map[string]*tls.Config{"nobody": r.as(nil, "", "none"), "tenant": r.certified(pkix.Name{CommonName: "ann", OrganizationalUnit: []string{"tenant"}, Organization: []string{"shop"}})}
	for _, role := range []string{"admin", "viewer", "mux", "host", "manager", "root", ""} {
		who[role] = r.as(ca, "somebody", role)
	}
	// Certificates that do not say clearly whom they are for.
	who["tenant of none"] = r.as(ca, "ann", "tenant")
	who["two roles"] = r.certified(pkix.Name{CommonName: "ann", OrganizationalUnit: []string{"admin", "viewer"}})
	who["tenant of two"] = r.certified(pkix.Name{CommonName: "ann", OrganizationalUnit: []string{"tenant"}, Organization: []string{"shop", "media"}})
	for role := range who {
		hc := r.httpClient(who[role])
		for _, procedure := range procedures() {
			roles, ruled := mayCall[procedure]
			if !ruled {
				t.Fatalf("%s has no rule: say in rights who may call it, and here", procedure)
			}
			may := slices.Contains(strings.Fields(roles), role)
			if got := passes(t, hc, r.addr, procedure); got != may {
				t.Errorf("%s as %q: passes the gate: %v, want %v", procedure, role, got, may)
			}
		}
	}
	for procedure := range mayCall {
		if !slices.Contains(procedures(), procedure) {
			t.Errorf("%s is no procedure", procedure)
		}
	}
}

// passes tells whether a call gets through the gate.
func passes(t *testing.T, hc *http.Client, addr, procedure string) bool {
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
	res.Body.Close()
	switch res.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return false
	case http.StatusUnsupportedMediaType, http.StatusNotFound:
		// The service has it, or is not served by this manager yet: nobody below the gate refused.
		return true
	}
	t.Fatalf("%s: status %s", procedure, res.Status)
	return false
}
