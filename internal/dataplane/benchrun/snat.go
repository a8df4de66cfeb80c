package benchrun

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// portsPerEntry is the number of SNAT ports that one 16-bit entry stands for: a lease is a block of eight.
const portsPerEntry = 8

// mmapable is BPF_F_MMAPABLE.
const mmapable = unix.BPF_F_MMAPABLE

// SNATFootprint is the kernel memory, in bytes, of a table with room for so many SNAT ports: an array from port>>3 to the 16-bit
// number of their holder, four to a word.
func SNATFootprint(ports uint32) (bytes uint64, err error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "snat_room", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: ports / portsPerEntry / 4, Flags: mmapable,
	})
	if err != nil {
		return 0, fmt.Errorf("make SNAT table: %w", err)
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return 0, fmt.Errorf("read SNAT table: %w", err)
	}
	bytes, ok := info.Memlock()
	if !ok {
		return 0, errors.New("read SNAT table: the kernel does not tell its memory")
	}
	return bytes, nil
}
