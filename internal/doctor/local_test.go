package doctor

import "testing"

// TestLocal: every question can be put to this machine; the answers are its own business.
func TestLocal(t *testing.T) {
	for _, role := range []Role{Mux, Host, Server} {
		for _, r := range Run(Local{}, Options{Role: role, Interface: "lo", MTU: 1500}) {
			if r.Found == "" || r.Status != OK && r.Cure == "" {
				t.Errorf("%s: %+v", role, r)
			}
		}
	}
}
