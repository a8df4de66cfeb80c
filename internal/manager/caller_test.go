package manager_test

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/store"
)

// callerHeader returns the caller header of a manager of some version.
func callerHeader(t *testing.T, fields map[string]any) string {
	t.Helper()
	content, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(content)
}

// TestFormerManagersForward checks that a certificate forwarded by a follower of an earlier version
// identifies the caller. A revoked one is refused here too. A caller whose way of authentication is
// unknown is refused.
func TestFormerManagersForward(t *testing.T) {
	r := newRig(t, store.NewMemory())
	c := shuntv1connect.NewManagerClient(r.httpClient(r.as(r.ca(), "m2", "manager")), "https://"+r.addr)
	status := func(fields map[string]any) error {
		req := connect.NewRequest(&apiv1.StatusRequest{})
		req.Header().Set("Shunt-Caller", callerHeader(t, fields))
		_, err := c.Status(t.Context(), req)
		return err
	}
	alice := r.person("alice", "viewer", "", time.Hour)
	cert, err := pki.ParseCert(alice.made.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]any{"name": "alice", "role": "viewer", "via": "certificate", "from": "192.0.2.1:1", "cert": cert.Raw}
	if err := status(said); err != nil {
		t.Errorf("a good certificate: %v", err)
	}
	if err := r.revoke(alice.made.Access.Id); err != nil {
		t.Fatal(err)
	}
	if err := status(said); connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), "it was revoked") {
		t.Errorf("a revoked certificate: %v", err)
	}
	for what, fields := range map[string]map[string]any{
		"no certificate":             {"name": "admin", "role": "admin", "via": "certificate"},
		"a certificate that is none": {"name": "admin", "role": "admin", "via": "certificate", "cert": []byte("none")},
		"an ID token for ever":       {"name": "ann", "role": "admin", "via": "oidc"},
		"a token without an id":      {"name": "ann", "role": "admin", "via": "token"},
		"another proof":              {"name": "ann", "role": "admin", "via": "passkey", "expires": time.Now().Add(time.Hour)},
		"a role without a proof":     {"role": "admin"},
	} {
		if err := status(fields); connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), "the managers' versions differ") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
