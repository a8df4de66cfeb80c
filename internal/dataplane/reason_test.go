package dataplane

import (
	"slices"
	"strings"
	"testing"
)

// TestReasons: packets of reasons whose name begins with "pass_" are left to the kernel, and each class has reasons. Names are those of bpf/abi.
func TestReasons(t *testing.T) {
	for program, all := range map[string]Reasons{"mux": MuxReasons(), "host": HostReasons(), "co": COReasons()} {
		met := map[Class]int{}
		for i, r := range all.All {
			met[r.Class]++
			if strings.HasPrefix(r.Name, "pass_") && r.Class != ClassPass {
				t.Errorf("%s: %s has class %s", program, r.Name, r.Class)
			}
			if all.Class(r.Name) != r.Class {
				t.Errorf("%s: Class(%s) is %q, want %q", program, r.Name, all.Class(r.Name), r.Class)
			}
			if slices.IndexFunc(all.All, func(o Reason) bool { return o.Name == r.Name }) != i {
				t.Errorf("%s: two reasons are named %s", program, r.Name)
			}
		}
		for _, c := range []Class{ClassDrop, ClassPass, ClassTX} {
			if met[c] == 0 {
				t.Errorf("%s has no reason of class %s", program, c)
			}
		}
		if c := all.Class("no such reason"); c != "" {
			t.Errorf("%s: a reason that is not there has class %q", program, c)
		}
	}
}
