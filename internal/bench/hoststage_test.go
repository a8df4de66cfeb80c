package bench

import (
	"net/netip"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
)

// A bulk upload over a connection that another host owns is forwarded in unsplit GSO packets, and
// arrives complete. A download over such a connection continues too, and so do transfers that are
// not repaired.
func TestRepairedSuperPacketsGoWhole(t *testing.T) {
	s, err := openHostStage(testOptions(t, "gso"), 1<<13, bulkPort)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	for i := range s.hosts {
		l, err := s.listen(i, bulkPort)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go serveBulk(l)
	}
	for _, c := range bulkCases {
		at := 0
		if c.repaired {
			at = 1
		}
		before, err := s.reasons(0)
		if err != nil {
			t.Fatal(err)
		}
		from, err := s.dataAt(at, c.way)
		if err != nil {
			t.Fatal(err)
		}
		b := bulkTurn{to: netip.AddrPortFrom(benchrun.HostVIP(), bulkPort), through: at, then: 0, way: c.way, duration: 300 * time.Millisecond}
		bps, err := s.transfer(t.Context(), b)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		to, err := s.dataAt(at, c.way)
		if err != nil {
			t.Fatal(err)
		}
		after, err := s.reasons(0)
		if err != nil {
			t.Fatal(err)
		}
		size, away := float64(to.bytes-from.bytes)/float64(to.packets-from.packets), after["repaired_away"]-before["repaired_away"]
		t.Logf("%s: %.2f Gbit/s, %.0f bytes a packet, %d repaired", c.name, bps/1e9, size, away)
		if size < 3*liveMTU {
			t.Errorf("%s: packets of %.0f bytes arrive: they do not stay whole", c.name, size)
		}
		if (away > 0) != c.repaired || after["repair_failed"] != before["repair_failed"] {
			t.Errorf("%s: %d packets were repaired, reasons %v", c.name, away, after)
		}
	}
}

// Connections through the programs and direct ones are opened and served.
func TestHostStageConnects(t *testing.T) {
	s, err := openHostStage(testOptions(t, "cps"), 1<<13, connectPort)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	row, err := s.connectCase(t.Context(), testOptions(t, "cps"))
	if err != nil {
		t.Fatal(err)
	}
	if row.Get("cps") <= 0 || row.Get("direct_cps") <= 0 || row.Get("failures") != 0 {
		t.Errorf("row %+v", row)
	}
	if r, err := s.reasons(0); err != nil || r["in_delivered"] == 0 || r["out_returned"] == 0 {
		t.Errorf("reasons %v, %v", r, err)
	}
}
