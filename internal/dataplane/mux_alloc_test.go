package dataplane

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestBuddy compares the allocator with a list of who owns which word.
func TestBuddy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const words, smallest = 256, 4
		b := newBuddy(words, smallest)
		var held []block
		owner := map[uint32]int{}
		for step := range rapid.IntRange(1, 80).Draw(t, "steps") {
			if len(held) > 0 && rapid.IntRange(0, 2).Draw(t, "free") == 0 {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				b.free(held[i])
				for w := range held[i].words {
					delete(owner, held[i].first+w)
				}
				held = append(held[:i], held[i+1:]...)
				continue
			}
			want := rapid.Uint32Range(1, 70).Draw(t, "words")
			k, ok := b.alloc(want)
			if !ok {
				continue
			}
			if k.words < want || k.words >= 2*max(want, smallest) || k.first%k.words != 0 || k.first+k.words > words {
				t.Fatalf("asked for %d words, got %+v", want, k)
			}
			for w := range k.words {
				if other, taken := owner[k.first+w]; taken {
					t.Fatalf("word %d belongs to steps %d and %d", k.first+w, other, step)
				}
				owner[k.first+w] = step
			}
			held = append(held, k)
		}
		// A new allocator that is told of the blocks in use behaves like the old one.
		again := newBuddy(words, smallest)
		for _, k := range held {
			if got, ok := again.reserve(k.first, k.words); !ok || got != k {
				t.Fatalf("reserve %+v: got %+v, %v", k, got, ok)
			}
			if _, ok := again.reserve(k.first, 1); ok {
				t.Fatalf("%+v was reserved twice", k)
			}
		}
		for _, k := range held {
			b.free(k)
			again.free(k)
		}
		for _, x := range []*buddy{b, again} {
			if _, ok := x.alloc(words); !ok {
				t.Fatal("all was given back, but the whole table is not free")
			}
		}
	})
}

// TestSlotTable compares the endpoint table with a map through places, withdrawals and releases in any order.
func TestSlotTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := newSlotTable(make([]muxEndpointSlot, 64))
		placed, oracle, grace := map[lb.EndpointKey]uint32{}, map[lb.EndpointKey]uint32{}, []uint32(nil)
		for n := range rapid.Uint32Range(1, 200).Draw(t, "steps") {
			k := lb.EndpointKey{VIP: muxVIP4, Protocol: lb.TCP, Port: rapid.Uint16Range(1, 40).Draw(t, "port")}
			switch slot, in := placed[k]; {
			case in && rapid.Bool().Draw(t, "withdraw"):
				table.withdraw(k, slot)
				delete(placed, k)
				delete(oracle, k)
				grace = append(grace, slot)
			case !in:
				slot, err := table.place(k)
				if err != nil {
					continue
				}
				if rapid.IntRange(0, 4).Draw(t, "undo") == 0 {
					table.unplace(k, slot)
					continue
				}
				table.publish(slot, n)
				placed[k], oracle[k] = slot, n
			}
			if rapid.IntRange(0, 5).Draw(t, "release") == 0 {
				for _, slot := range grace {
					table.release(slot)
				}
				grace = nil
			}
			for port := range uint16(42) {
				key := lb.EndpointKey{VIP: muxVIP4, Protocol: lb.TCP, Port: port}
				want, in := oracle[key]
				slot, found := table.find(key)
				first := uint64(muxEndpointSlotValueENDPOINT_SLOT_FIRST)
				if found != in || found && table.mem[slot].Value != uint64(want)+first {
					t.Fatalf("step %d, port %d: found slot %d, %v; wanted %d, %v", n, port, slot, found, want, in)
				}
			}
		}
	})
}

// TestSlotTableHoldsItsLimit: as many endpoints as may exist find a place.
func TestSlotTableHoldsItsLimit(t *testing.T) {
	table := newSlotTable(make([]muxEndpointSlot, muxLimitLIMIT_ENDPOINT_SLOTS))
	for i := range uint32(muxLimitLIMIT_ENDPOINTS) {
		a := netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)})
		if _, err := table.place(lb.EndpointKey{VIP: a, Protocol: lb.TCP, Port: 80}); err != nil {
			t.Fatalf("endpoint %d: %v", i, err)
		}
	}
}

// TestVerifiedInstructions: what the verifier looks at may grow by a tenth of what testdata records. Write the new
// figure there when a change needs more.
func TestVerifiedInstructions(t *testing.T) {
	path := filepath.Join("testdata", "mux_verified_instructions")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	recorded, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", path, err))
	}
	info, err := newMuxFixture(t).mux.Program().Info()
	if err != nil {
		t.Fatal(err)
	}
	n, ok := info.VerifiedInstructions()
	if !ok {
		t.Fatal("the kernel does not tell")
	}
	t.Logf("%d verified instructions, %d recorded", n, recorded)
	if int(n) > recorded*11/10 {
		t.Errorf("%d verified instructions, %d recorded in %s", n, recorded, path)
	}
}
