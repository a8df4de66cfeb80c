package benchrun

import (
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"pgregory.net/rapid"
)

// katranSpec has the maps and the program that the driver asks for, in the sizes of balancer_structs.h and
// balancer_consts.h.
func katranSpec(maxVIPs uint32) *ebpf.CollectionSpec {
	return &ebpf.CollectionSpec{
		Maps: map[string]*ebpf.MapSpec{
			"vip_map":     {Type: ebpf.Hash, KeySize: 20, ValueSize: 8, MaxEntries: maxVIPs},
			"lru_mapping": {Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 128, InnerMap: &ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 40, ValueSize: 16, MaxEntries: 1000}},
			"ch_rings":    {Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: maxVIPs * KatranRing},
			"reals":       {Type: ebpf.Array, KeySize: 4, ValueSize: 20, MaxEntries: 4096},
			"stats":       {Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16, MaxEntries: 2 * maxVIPs},
			"ctl_array":   {Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 16},
		},
		Programs: map[string]*ebpf.ProgramSpec{katranProgram: {Type: ebpf.XDP}},
	}
}

// Keys and values have the sizes of the maps.
func TestKatranTypes(t *testing.T) {
	maps := katranSpec(1).Maps
	lru := maps["lru_mapping"].InnerMap
	for name, c := range map[string]struct {
		value any
		want  uint32
	}{
		"VIP": {katranVIP{}, maps["vip_map"].KeySize}, "VIP's record": {katranVIPMeta{}, maps["vip_map"].ValueSize},
		"real": {katranReal{}, maps["reals"].ValueSize}, "counter": {katranStats{}, maps["stats"].ValueSize},
		"flow": {katranFlow{}, lru.KeySize}, "position": {katranPosition{}, lru.ValueSize},
	} {
		if got := binary.Size(c.value); got != int(c.want) {
			t.Errorf("%s: %d bytes, want %d", name, got, c.want)
		}
	}
}

func TestKatranSizes(t *testing.T) {
	reals := []netip.Addr{netip.MustParseAddr("10.20.1.1")}
	for _, c := range []struct {
		name   string
		tables KatranTables
		change func(*ebpf.CollectionSpec)
		want   string
	}{
		{"fits", KatranTables{VIPs: 512, Reals: reals}, func(*ebpf.CollectionSpec) {}, ""},
		{"no map", KatranTables{VIPs: 1, Reals: reals}, func(s *ebpf.CollectionSpec) { delete(s.Maps, "reals") }, "no map reals"},
		{"no program", KatranTables{VIPs: 1, Reals: reals}, func(s *ebpf.CollectionSpec) { clear(s.Programs) }, "no program balancer_ingress"},
		{"other rings", KatranTables{VIPs: 1, Reals: reals}, func(s *ebpf.CollectionSpec) { s.Maps["ch_rings"].MaxEntries = 512 * 13313 }, "want RING_SIZE 65537"},
		{"VIPs", KatranTables{VIPs: 513, Reals: reals}, func(*ebpf.CollectionSpec) {}, "513 VIPs: want at most 512"},
		{"reals", KatranTables{VIPs: 1, Reals: make([]netip.Addr, 4096)}, func(*ebpf.CollectionSpec) {}, "4096 reals: want less than 4096"},
	} {
		spec := katranSpec(512)
		c.change(spec)
		k := Katran{tables: c.tables}
		err := k.size(spec)
		if c.want == "" {
			if err != nil || spec.Maps["ch_rings"].MaxEntries != c.tables.VIPs*KatranRing || k.maxVIPs != 512 {
				t.Errorf("%s: %v, %d slots, at most %d VIPs", c.name, err, spec.Maps["ch_rings"].MaxEntries, k.maxVIPs)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q", c.name, err, c.want)
		}
	}
}

// An object of anything else is refused by name.
func TestKatranRefusesOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "front.o")
	if err := os.WriteFile(path, _FrontBytes, 0o600); err != nil {
		t.Fatal(err)
	}
	for object, want := range map[string]string{path: path + ": no map vip_map", path + "x": "read " + path + "x"} {
		if _, err := OpenKatran(object, KatranTables{VIPs: 1}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want %q", object, err, want)
		}
	}
}

// Rings, reals, VIPs and connections land where a program finds them: read back through the kernel.
func TestKatranTables(t *testing.T) {
	for _, family := range []Family{IPv4, IPv6} {
		reals := []netip.Addr{netip.MustParseAddr("10.20.1.1"), netip.MustParseAddr("2001:db8:20:1::2"), netip.MustParseAddr("10.20.1.3")}
		sets := []KatranSet{{Reals: []int{0, 1}, Ring: make([]uint16, KatranRing)}, {Reals: []int{2}, Ring: make([]uint16, KatranRing)}}
		sets[0].Ring[KatranRing-1] = 1
		spec := katranSpec(4)
		k := &Katran{tables: KatranTables{Family: family, VIPs: 3, Reals: reals, Sets: sets, Flows: 64}}
		if err := k.size(spec); err != nil {
			t.Fatal(err)
		}
		spec.Programs = nil
		var err error
		if k.collection, err = ebpf.NewCollection(spec); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { k.Close() })
		if err := k.fill(spec); err != nil {
			t.Fatal(err)
		}
		for slot, want := range map[uint32]uint32{0: 1, KatranRing - 1: 2, KatranRing: 3, 2 * KatranRing: 1, 3*KatranRing - 1: 2} {
			var got uint32
			if err := k.collection.Maps["ch_rings"].Lookup(slot, &got); err != nil || got != want {
				t.Errorf("IPv%d: slot %d has real %d (%v), want %d", family, slot, got, err, want)
			}
		}
		var number katranVIPMeta
		key := append(katranBytes(family.VIP(2)), 0, Port, protoTCP, 0)
		if err := k.collection.Maps["vip_map"].Lookup(key, &number); err != nil || number != (katranVIPMeta{0, 2}) {
			t.Errorf("IPv%d: VIP 2 is %+v (%v)", family, number, err)
		}
		var second [20]byte
		want := [20]byte(append(katranBytes(reals[1]), katranRealIPv6, 0, 0, 0))
		if err := k.collection.Maps["reals"].Lookup(uint32(2), &second); err != nil || second != want {
			t.Errorf("IPv%d: real 2 is % x (%v), want % x", family, second, err, want)
		}
		p := (Traffic{Family: family, Flows: 9, VIPs: 3}).packet(7)
		if known, err := k.Knows(p); err != nil || known {
			t.Errorf("IPv%d: flow is known (%v)", family, err)
		}
		flow := append(append(katranBytes(p.Client), katranBytes(p.VIP)...), byte(p.ClientPort>>8), byte(p.ClientPort), 0, Port, protoTCP, 0, 0, 0)
		if err := k.lru.Put(flow, katranPosition{Real: 1}); err != nil {
			t.Fatal(err)
		}
		if known, err := k.Knows(p); err != nil || !known {
			t.Errorf("IPv%d: flow is not known (%v)", family, err)
		}
	}
}

// katranBytes is an address in 16 bytes, IPv4 in the first four.
func katranBytes(a netip.Addr) []byte {
	b := make([]byte, 16)
	copy(b, a.AsSlice())
	return b
}

// vipNumber is the inverse of VIP.
func TestVIPNumber(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint32Range(0, 1<<20).Draw(t, "n")
		for _, family := range []Family{IPv4, IPv6} {
			if got := family.vipNumber(family.VIP(n)); got != n {
				t.Fatalf("IPv%d: VIP %d has number %d", family, n, got)
			}
		}
	})
}
