package dataplane

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// muxMemory are the mux's tables in this process's memory. Words that bpf/abi.h calls atomic are stored with store.
type muxMemory struct {
	slots     []muxEndpointSlot
	endpoints []muxEndpoint
	rings     []uint64
	members   []uint64
	backends  []muxBackend
	devices   []muxDevice
	config    *muxMuxConfig

	mapped [][]byte
}

// mapMux maps all tables.
func mapMux(m *muxMaps) (*muxMemory, error) {
	mem := &muxMemory{}
	var configs []muxMuxConfig
	for _, err := range []error{
		mapTable(mem, m.EndpointSlots, &mem.slots),
		mapTable(mem, m.Endpoints, &mem.endpoints),
		mapTable(mem, m.Rings, &mem.rings),
		mapTable(mem, m.Members, &mem.members),
		mapTable(mem, m.Backends, &mem.backends),
		mapTable(mem, m.Devices, &mem.devices),
		mapTable(mem, m.Configs, &configs),
	} {
		if err != nil {
			mem.close()
			return nil, err
		}
	}
	mem.config = &configs[0]
	return mem, nil
}

// mapTable maps a BPF_F_MMAPABLE array as a slice of its elements.
func mapTable[T any](mem *muxMemory, m *ebpf.Map, out *[]T) error {
	var element T
	if size := uint32(unsafe.Sizeof(element)); size != m.ValueSize() {
		return fmt.Errorf("map table %s: its elements have %d bytes, expected %d", m, m.ValueSize(), size)
	}
	length := int(m.MaxEntries()) * int(m.ValueSize())
	b, err := unix.Mmap(m.FD(), 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map table %s into memory: %w", m, err)
	}
	mem.mapped = append(mem.mapped, b)
	*out = unsafe.Slice((*T)(unsafe.Pointer(&b[0])), m.MaxEntries())
	return nil
}

func (mem *muxMemory) close() {
	for _, b := range mem.mapped {
		unix.Munmap(b) //nolint:errcheck // the address and length are the ones mmap returned
	}
	*mem = muxMemory{}
}

// store publishes a word.
func store(word *uint64, value uint64) { atomic.StoreUint64(word, value) }

// load reads a published word.
func load(word *uint64) uint64 { return atomic.LoadUint64(word) }
