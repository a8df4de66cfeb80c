package manager_test

import (
	"os"
	"path/filepath"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/store"
)

// TestExamplesAreTaken applies every example of the documentation to one manager, and then once
// more, which changes nothing.
func TestExamplesAreTaken(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network())
	files, err := filepath.Glob("../../docs/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, want := range []apiv1.Change_Action{apiv1.Change_ACTION_CREATED, apiv1.Change_ACTION_UNCHANGED} {
		for _, name := range files {
			file, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			docs, err := lb.ParseDocuments(file, name, lb.Whole)
			file.Close()
			if err != nil {
				t.Fatal(err)
			}
			req := &apiv1.ApplyRequest{}
			for _, d := range docs {
				req.Objects = append(req.Objects, convert.Written(d))
			}
			res, err := r.admin.Apply(t.Context(), connect.NewRequest(req))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			for _, ch := range res.Msg.GetChanges() {
				if ch.GetAction() != want {
					t.Errorf("%s: %s/%s: %v, want %v", name, ch.GetKind(), ch.GetName(), ch.GetAction(), want)
				}
			}
		}
	}
}
