package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// bpfFlagMmapable is BPF_F_MMAPABLE (linux/bpf.h).
const bpfFlagMmapable = 1 << 10

// ProbeXDP loads a program that passes everything, and attaches it to nothing.
func ProbeXDP() error {
	program, err := probeProgram(ebpf.XDP, 2) // XDP_PASS
	if err != nil {
		return fmt.Errorf("load XDP program: %w", err)
	}
	return program.Close()
}

// ProbeTCX attaches a program that changes nothing to a device by tcx (Linux 6.6) and detaches it again.
func ProbeTCX(device int) error {
	program, err := probeProgram(ebpf.SchedCLS, -1) // TCX_NEXT
	if err != nil {
		return fmt.Errorf("load tc program: %w", err)
	}
	defer program.Close()
	l, err := link.AttachTCX(link.TCXOptions{Interface: device, Program: program, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return fmt.Errorf("attach tc program by tcx: %w", err)
	}
	return l.Close()
}

// ProbeMmapableArray makes an array that can be mapped into memory (Linux 5.5).
func ProbeMmapableArray() error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "doctor_probe", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1, Flags: bpfFlagMmapable})
	if err != nil {
		return fmt.Errorf("make memory-mapped array: %w", err)
	}
	return m.Close()
}

// ProgramName is the name of a loaded program; "" when it is gone.
func ProgramName(id uint32) (string, error) {
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("open program %d: %w", id, err)
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return "", fmt.Errorf("read program %d: %w", id, err)
	}
	return info.Name, nil
}

// probeProgram loads a program that returns a constant.
func probeProgram(kind ebpf.ProgramType, result int32) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "doctor_probe", Type: kind, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, result), asm.Return()},
	})
}
