package dataplane

import (
	"errors"
	"fmt"
	"path/filepath"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// AliveWords are the member words of a mux, seen from another process as its program sees them: a packet that comes after
// a word changed meets the new one.
type AliveWords struct {
	mapped []byte
	words  []uint64
}

// OpenAliveWords finds the tables that are pinned in a mux's directory. It sees the members that are there now, and those
// that come to have words between theirs.
func OpenAliveWords(bpffs string) (*AliveWords, error) {
	// Not read-only: the kernel shares the memory of maps with descriptors that may write only.
	m, err := ebpf.LoadPinnedMap(filepath.Join(bpffs, muxPinTables, muxMapMembers), nil)
	if err != nil {
		return nil, fmt.Errorf("open member words: %w", err)
	}
	defer m.Close()
	a := &AliveWords{}
	length := int(m.MaxEntries()) * int(m.ValueSize())
	if a.mapped, err = unix.Mmap(m.FD(), 0, length, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map member words into memory: %w", err)
	}
	all := unsafe.Slice((*uint64)(unsafe.Pointer(&a.mapped[0])), length/8)
	first, last := -1, -1
	for i := range all {
		if load(&all[i])&memberPresent != 0 {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	if first < 0 {
		return nil, errors.Join(errors.New("open member words: the mux has no members"), a.Close())
	}
	a.words = all[first : last+1]
	return a, nil
}

// Count is how many members there are, and how many of them are alive. One that left counts until another one takes its word.
func (a *AliveWords) Count() (alive, members int) {
	for i := range a.words {
		w := load(&a.words[i])
		if w&memberPresent == 0 {
			continue
		}
		members++
		if w&memberAlive != 0 {
			alive++
		}
	}
	return alive, members
}

// Close lets go of the memory.
func (a *AliveWords) Close() error {
	return unix.Munmap(a.mapped)
}
