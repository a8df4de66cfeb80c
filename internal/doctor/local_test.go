package doctor

import "testing"

// TestLocal runs every check on this machine, whatever the results.
func TestLocal(t *testing.T) {
	for _, role := range []Role{Mux, Host, Server} {
		for _, r := range Run(Local{}, Options{Role: role, Interface: "lo", MTU: 1500}) {
			if r.Found == "" || r.Status != OK && r.Cure == "" {
				t.Errorf("%s: %+v", role, r)
			}
		}
	}
}
