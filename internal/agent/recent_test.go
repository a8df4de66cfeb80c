package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// TestRecentPlanAfterAFault: if a loss of power, or the end of the agent during a write, damages
// one recent file in any way, the next agent loads the newest of the other plans.
func TestRecentPlanAfterAFault(t *testing.T) {
	plan := func(revision int64, items int) *apiv1.PlanUpdate {
		up := &apiv1.PlanUpdate{Revision: revision, Epoch: 1, Snapshot: true}
		for range items {
			up.Upsert = append(up.Upsert, &apiv1.PlanItem{Key: strings.Repeat("k", 50)})
		}
		return up
	}
	for name, spoil := range map[string]func(content []byte) []byte{
		"nothing":         nil,
		"empty":           func([]byte) []byte { return nil },
		"zeros":           func(c []byte) []byte { return make([]byte, len(c)) },
		"cut":             func(c []byte) []byte { return c[:len(c)-1] },
		"half the header": func(c []byte) []byte { return c[:recentHeader/2] },
		"the header":      func(c []byte) []byte { return c[:recentHeader] },
		"partly written":  func(c []byte) []byte { return append(c[:40:40], make([]byte, len(c)-40)...) },
		"another letter in a key": func(c []byte) []byte {
			c[len(c)-1] = 'x'
			return c
		},
		"length too large": func(c []byte) []byte {
			c[len(recentMagic)] = 0xff
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := savePlan(dir, plan(1, 3)); err != nil {
				t.Fatal(err)
			}
			recent := recentPlans{dir: dir}
			// shorter than the previous contents of the files
			for _, up := range []*apiv1.PlanUpdate{plan(2, 9), plan(3, 9), plan(4, 2), plan(5, 4)} {
				if err := recent.save(up); err != nil {
					t.Fatal(err)
				}
			}
			want := int64(5)
			newest := filepath.Join(dir, recentFiles[1])
			if spoil != nil {
				want = 4
				content, err := os.ReadFile(newest)
				if err != nil {
					t.Fatal(err)
				}
				length := recentHeader + proto.Size(plan(5, 4))
				if err := os.WriteFile(newest, spoil(content[:length]), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if up, err := loadPlan(dir); err != nil || up.GetRevision() != want || len(up.GetUpsert()) != map[int64]int{4: 2, 5: 4}[want] {
				t.Errorf("loaded revision %d with %d items (%v), expected %d", up.GetRevision(), len(up.GetUpsert()), err, want)
			}
			// A broken synced plan does not prevent the use of a recent one.
			if err := os.WriteFile(filepath.Join(dir, planFile), []byte("no plan"), 0o600); err != nil {
				t.Fatal(err)
			}
			if up, err := loadPlan(dir); err != nil || up.GetRevision() != want {
				t.Errorf("without a synced plan: loaded revision %d (%v), expected %d", up.GetRevision(), err, want)
			}
			if err := savePlan(dir, plan(6, 1)); err != nil {
				t.Fatal(err)
			}
			if up, err := loadPlan(dir); err != nil || up.GetRevision() != 6 {
				t.Errorf("with a newer synced plan: loaded revision %d (%v), expected 6", up.GetRevision(), err)
			}
			if err := os.Remove(filepath.Join(dir, planFile)); err != nil {
				t.Fatal(err)
			}
			if up, err := loadPlan(dir); err != nil || up != nil {
				t.Errorf("without %s: loaded revision %d (%v), expected none", planFile, up.GetRevision(), err)
			}
		})
	}
}
