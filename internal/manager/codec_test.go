package manager_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/store"
)

// TestUnknownFieldsAreRefused checks that no part of a request is ignored, in JSON and in protobuf.
func TestUnknownFieldsAreRefused(t *testing.T) {
	r := newRig(t, store.NewMemory())
	hc := r.httpClient(r.adminTLS())
	const plain = `{"objects": [{"network": {"name": "main", "vips": ["203.0.113.0/24"]}}]}`
	for body, want := range map[string]struct {
		status int
		text   string
	}{
		plain: {http.StatusOK, `"ACTION_`},
		strings.Replace(plain, "vips", "vipps", 1):              {http.StatusBadRequest, `vipps`},
		strings.Replace(plain, "}]", "}], \"dryrun\": true", 1): {http.StatusBadRequest, `dryrun`},
		"": {http.StatusBadRequest, "JSON: must not be empty"},
	} {
		for _, kind := range []string{"application/json", "application/json; charset=utf-8"} {
			res, err := hc.Post("https://"+r.addr+"/shunt.v1.Manager/Apply", kind, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || res.StatusCode != want.status || !strings.Contains(string(text), want.text) {
				t.Errorf("%s: %d %s %v: must be %d with %s", body, res.StatusCode, text, err, want.status, want.text)
			}
		}
	}
	o := convert.ToObject(web(1))
	b := o.GetService().Endpoints[0].Backends[0].ProtoReflect()
	b.SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
	_, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{o}, DryRun: true}))
	if got := strings.Join(violations(t, err), "\n"); !strings.Contains(got, "objects[0]: Backend: : has fields that are not supported by this version") {
		t.Errorf("unknown protobuf field: %s", got)
	}
}
