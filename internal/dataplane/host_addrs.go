package dataplane

// addrTable numbers the addresses that flows name: DIPs and VIPs of bindings. An address keeps its number as long as a binding has it, and
// then until two whole sweeps found no flow that names it. Number 0 is nobody's.
type addrTable struct {
	cells   [][16]byte
	numbers map[[16]byte]uint32
	free    []uint32
	// leaving are numbers of addresses that no binding has, with how many sweeps found no flow that names them.
	leaving map[uint32]int
	// cleared, if not nil, is told of a number before it is free.
	cleared func(number uint32)
}

// readAddrs learns what the cells hold. Until keep says otherwise every address is leaving.
func readAddrs(cells [][16]byte) addrTable {
	t := addrTable{cells: cells, numbers: map[[16]byte]uint32{}, leaving: map[uint32]int{}}
	for n := len(cells) - 1; n > 0; n-- {
		if cells[n] == ([16]byte{}) {
			t.free = append(t.free, uint32(n))
			continue
		}
		t.numbers[cells[n]] = uint32(n)
		t.leaving[uint32(n)] = 0
	}
	return t
}

// number is that of an address, a new one if need be.
func (t *addrTable) number(addr [16]byte) (uint32, error) {
	if n, ok := t.numbers[addr]; ok {
		delete(t.leaving, n)
		return n, nil
	}
	if len(t.free) == 0 {
		return 0, noRoom(TableFlowAddresses, "no room for another address of a flow: %d are in use", len(t.numbers))
	}
	n := t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	t.cells[n] = addr
	t.numbers[addr] = n
	return n, nil
}

// keep makes every address leave but these.
func (t *addrTable) keep(wanted map[uint32]bool) {
	for _, n := range t.numbers {
		if _, leaves := t.leaving[n]; !wanted[n] && !leaves {
			t.leaving[n] = 0
		}
	}
}

// swept tells which addresses the flows of a whole sweep named; `from` are those that were leaving when it began.
func (t *addrTable) swept(from map[uint32]bool, named map[uint32]bool) {
	for n := range from {
		seen, leaves := t.leaving[n]
		switch {
		case !leaves:
		case named[n]:
			t.leaving[n] = 0
		case seen == 0:
			t.leaving[n] = 1
		default:
			if t.cleared != nil {
				t.cleared(n)
			}
			delete(t.leaving, n)
			delete(t.numbers, t.cells[n])
			t.cells[n] = [16]byte{}
			t.free = append(t.free, n)
		}
	}
}
