package bench

import (
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
)

// testOptions returns options of a short run with its own name.
func testOptions(t *testing.T, name string) Options {
	return Options{Short: true, LabName: fmt.Sprintf("b%s%d", name, os.Getpid()%100000), Progress: func(line string) { t.Log(line) }}
}

// Every case of the host's programs passes its own audit, which checks all packets.
func TestHostCases(t *testing.T) {
	cpu, err := benchrun.LastCPU()
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range hostCases {
		t.Run(c.name, func(t *testing.T) {
			row, err := c.run(t.Context(), testOptions(t, fmt.Sprint("host", i)), cpu)
			if err != nil {
				t.Fatal(err)
			}
			if row.Case != c.name || row.Get("runs") != 1 || row.Get("packets") < shortPackets || row.Get("hits") < 99.9 || !(row.Get("over_floor_ns") > -1e6) {
				t.Errorf("row %+v", row)
			}
		})
	}
}

// The audit detects packets that were handled in another way, and lost flows.
func TestHostAuditFails(t *testing.T) {
	for what, a := range map[string]hostAudit{
		"packets that the counters do not have": {c: hostCase{kind: hostDelivers}},
		"trusted flows that are gone":           {c: hostCase{kind: hostDelivers}, trusted: 1, before: map[string]uint64{}},
	} {
		packets := uint64(0)
		if a.trusted == 0 {
			packets = 5
		}
		_, err := a.judge(dataplane.HostCounters{Reasons: map[string]uint64{}}, packets)
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// A filled table holds its flows, except those that were evicted by others before their servers
// replied, which are counted: the two buckets of a flow are random. A flood of SYNs evicts no
// established flow, and all flows expire.
func TestFloodCase(t *testing.T) {
	c := floodCases[0]
	row, err := c.run(t.Context(), testOptions(t, "flood"))
	if err != nil {
		t.Fatal(err)
	}
	placed := math.Round(row.Get("placed") / 100 * shortFlood)
	if placed+row.Get("evicted") != shortFlood || row.Get("evicted") > 8 || row.Get("lost") != 0 || row.Get("expired") < shortFlood || math.Abs(row.Get("bytes_per_flow")-104) > 0.5 || !(row.Get("begin_p999_ns") > 0) {
		t.Errorf("row %+v", row)
	}
}

// A host's tables take 104 bytes a flow.
func TestHostMemory(t *testing.T) {
	row, err := hostSize{"small", 1 << 16}.run(testOptions(t, "mem"))
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(row.Get("per_flow")-104) > 0.5 || row.Get("bytes") < 104<<16 {
		t.Errorf("row %+v", row)
	}
}
