package dataplane

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// TestVerifierLog: the log of a refused program has every line, its error the last one; other errors have no log.
func TestVerifierLog(t *testing.T) {
	_, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R2, 7), asm.Mov.Imm(asm.R0, xdpPass), asm.LoadMem(asm.R1, asm.R2, 0, asm.Word), asm.Return(),
	}})
	if err == nil {
		t.Fatal("the kernel took a program that reads address 7")
	}
	const last = "R2 invalid mem access 'scalar'"
	if !strings.Contains(err.Error(), last) || strings.Contains(err.Error(), "r2 = 7") {
		t.Errorf("error %q, want the last line of the log, %q, and no other", err, last)
	}
	log := VerifierLog(fmt.Errorf("load mux program: %w", err))
	for _, want := range []string{"r2 = 7", "r0 = 2", last} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %q:\n%s", want, log)
		}
	}
	if log := VerifierLog(errors.New("no such file")); log != "" {
		t.Errorf("another error has the log %q", log)
	}
}
