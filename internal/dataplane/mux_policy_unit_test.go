package dataplane

import (
	"math"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// policyRun is bpf/unit/policy.bpf.c, loaded.
type policyRun struct {
	t       testing.TB
	objects policyObjects
	ranges  []uint64
	words   []uint64
	lists   []muxSourceList
}

func newPolicyRun(t testing.TB) *policyRun {
	u := &policyRun{t: t}
	if err := loadPolicyObjects(&u.objects, nil); err != nil {
		t.Fatalf("%+v", err)
	}
	mem := &muxMemory{}
	for _, err := range []error{
		mapTable(mem, u.objects.UnitRanges, &u.ranges), mapTable(mem, u.objects.UnitWords, &u.words),
		mapTable(mem, u.objects.UnitLists, &u.lists),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		mem.close()
		u.objects.Close()
	})
	return u
}

func (u *policyRun) run(in policyPolicyIn) (out policyPolicyOut) {
	u.t.Helper()
	if err := u.objects.In.Set(in); err != nil {
		u.t.Fatal(err)
	}
	if _, err := u.objects.Unit.Run(runOptions(make([]byte, 14), xdpContext{DataEnd: 14})); err != nil {
		u.t.Fatal(err)
	}
	if err := u.objects.Out.Get(&out); err != nil {
		u.t.Fatal(err)
	}
	return out
}

// TestLongestIdle: what validation lets through, stamps can hold.
func TestLongestIdle(t *testing.T) {
	for _, hz := range []time.Duration{100, 250, 300, 1000} {
		j := time.Second / hz
		tables := &muxTables{tick: j << uint(math.Round(math.Log2(float64(hz))))}
		if got := time.Duration(tables.ticks(lb.MaxIdle)) * tables.tick; got < lb.MaxIdle {
			t.Errorf("%d Hz: %v, expected at least %v", hz, got, lb.MaxIdle)
		}
	}
}
