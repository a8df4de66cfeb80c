package lab

import (
	"testing"

	"github.com/shuntlb/shunt/internal/doctor"
)

func TestOldKernelIsRefusedWithItsCure(t *testing.T) {
	m := doctor.NewFake()
	if err := needMachine(m); err != nil {
		t.Fatalf("a good machine: %v", err)
	}
	m.Release = "6.1.0-44-amd64"
	const want = "this machine cannot run a lab: kernel: Linux 6.1.0-44-amd64, must be 6.6 or newer (cure: install Linux 6.6 or newer, for instance on Debian 12: apt install -t bookworm-backports linux-image-amd64)"
	if err := needMachine(m); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
