package dataplane

import (
	"flag"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

var fuzzMutants = flag.Int("fuzzmutants", 0, "instructions of the program that TestFuzzerFindsMutants changes, one at a time")

// finds says whether the fuzzer sees a difference within n packets, and after how many. begun is called when an episode
// has begun.
func (f *fuzz) finds(n int, begun func(*fuzz)) (found bool, packets int) {
	type difference struct{ packets int }
	f.failed = func(string) { panic(difference{packets + f.step}) }
	defer func() {
		switch r := recover().(type) {
		case nil:
		case difference:
			found, packets = true, r.packets
		default:
			panic(r)
		}
	}()
	for seed := uint64(1); packets < n; seed++ {
		f.begin(seed)
		if begun != nil {
			begun(f)
		}
		f.run(fuzzEpisode)
		packets += fuzzEpisode
	}
	return false, packets
}

// TestFuzzerFindsFaults: a model that is wrong in one respect, which is as well a program that is, does not get far.
func TestFuzzerFindsFaults(t *testing.T) {
	f := newFuzz(t)
	for _, c := range []struct {
		name  string
		fault func(*fuzz)
	}{
		{"flow key", func(f *fuzz) { f.model.flows.key.K0 ^= 1 }},
		{"length of a tick", func(f *fuzz) { f.model.flows.tick *= 2 }},
		{"beginning of a tick", func(f *fuzz) { f.model.flows.shift++ }},
		{"jiffies per second", func(f *fuzz) { f.model.policy.hz-- }},
		{"own addresses", func(f *fuzz) { f.model.macs = f.model.macs[:1] }},
		{"address of a device", func(f *fuzz) { f.model.mac = func(i int) [6]byte { return testMAC(i + i/7) } }},
		{"interface of arrival", func(f *fuzz) { f.model.ingress = 7 }},
		{"tokens of packet-too-big", func(f *fuzz) {
			f.model.edge.ptb = map[netip.Addr]*bucketModel{}
			for _, vip := range fuzzVIPs {
				f.model.edge.ptb[vip] = &bucketModel{1 << 40, 1, 1 << 40, 0}
			}
		}},
		{"key of probes", func(f *fuzz) { f.model.probes.key ^= 1 }},
		{"ports of probes", func(f *fuzz) {
			for _, r := range f.model.probes.rules {
				r.port++
			}
		}},
		{"words of leases", func(f *fuzz) {
			for _, l := range f.model.snat.vips {
				l.words[128]++
			}
		}},
		{"hash of leases", func(f *fuzz) { f.model.snat.key.K1 ^= 1 }},
		{"count of datagrams", func(f *fuzz) { f.mux.memory.datagrams = nil }},
	} {
		datagrams := f.mux.memory.datagrams
		found, packets := f.finds(100_000, c.fault)
		f.mux.memory.datagrams = datagrams
		t.Logf("%s: packet %d", c.name, packets)
		if !found {
			t.Errorf("%s: %d packets did not show it", c.name, packets)
		}
	}
}

// mutant is the program with one instruction changed.
type mutant struct {
	number int
	source string
	was    asm.OpCode
}

// mutate changes the instruction after the given one that can be changed: a jump to its opposite, an immediate by one.
func mutate(ins asm.Instructions, from int) (m mutant, ok bool) {
	opposite := map[asm.JumpOp]asm.JumpOp{asm.JEq: asm.JNE, asm.JNE: asm.JEq, asm.JGT: asm.JLE, asm.JLE: asm.JGT, asm.JGE: asm.JLT,
		asm.JLT: asm.JGE, asm.JSGT: asm.JSLE, asm.JSLE: asm.JSGT, asm.JSet: asm.JEq}
	for i := range ins {
		at := (from + i) % len(ins)
		in := &ins[at]
		m = mutant{at, "", in.OpCode}
		for k := at; k >= 0 && m.source == ""; k-- {
			if s := ins[k].Source(); s != nil {
				m.source = strings.TrimSpace(s.String())
			}
		}
		if class := in.OpCode.Class(); class.IsJump() {
			if op, known := opposite[in.OpCode.JumpOp()]; known {
				in.OpCode = in.OpCode.SetJumpOp(op)
				return m, true
			}
		} else if class.IsALU() && in.OpCode.Source() == asm.ImmSource && in.Reference() == "" {
			if op := in.OpCode.ALUOp(); slices.Contains([]asm.ALUOp{asm.Add, asm.Mov, asm.And, asm.LSh, asm.RSh}, op) {
				in.Constant++
				return m, true
			}
		}
	}
	return m, false
}

// TestFuzzerFindsMutants changes instructions of the program and lists the changes that make no difference to the fuzzer:
// what never happens, and what the generator does not reach.
func TestFuzzerFindsMutants(t *testing.T) {
	r := rand.New(rand.NewPCG(max(*fuzzSeed, 1), 2))
	var killed, survived, refused int
	for range *fuzzMutants {
		t.Run("mutant", func(t *testing.T) {
			var m mutant
			f, err := openFuzz(t, func(spec *ebpf.CollectionSpec) {
				ins := spec.Programs["mux"].Instructions
				m, _ = mutate(ins, r.IntN(len(ins)))
			})
			if err != nil {
				refused++
				return
			}
			found, packets := f.finds(*fuzzPackets, nil)
			if found {
				killed++
			} else {
				survived++
				t.Logf("instruction %d (%v) survived %d packets: %s", m.number, m.was, packets, m.source)
			}
		})
	}
	t.Logf("%d killed, %d survived, %d refused by the verifier", killed, survived, refused)
}
