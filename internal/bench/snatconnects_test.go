package bench

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// Packets without a port are those that waited and those that were dropped, read from a host's real
// metrics.
func TestWaitsOf(t *testing.T) {
	const metrics = `# HELP shunt_host_packets_total Packets by what became of them.
shunt_host_packets_total{node="host1",reason="out_snat"} 900
shunt_host_packets_total{node="host1",reason="out_snat_expired"} 50
shunt_host_packets_total{node="host1",reason="out_snat_no_port"} 3
shunt_host_packets_total{node="host1",reason="out_snat_waits"} 40
shunt_host_table_used{node="host1",table="snat_waiting"} 7
`
	if got, err := waitsOf(strings.NewReader(metrics)); err != nil || got != 43 {
		t.Errorf("%d packets, %v, want 43", got, err)
	}
	for _, broken := range []string{"", strings.Replace(metrics, "out_snat_waits", "else", 1), strings.Replace(metrics, "} 40", "} many", 1)} {
		if got, err := waitsOf(strings.NewReader(broken)); err == nil {
			t.Errorf("%d packets of\n%s", got, broken)
		}
	}
}

// Of ten connections two packets waited, one failed, and two took longer than those without a VIP.
func TestOutboundFields(t *testing.T) {
	var leased, direct outboundResult
	for _, ms := range []int{1, 1, 2, 2, 2, 3, 4, 30, 40} {
		leased.add(time.Duration(ms)*time.Millisecond, nil)
	}
	leased.add(time.Hour, errors.New("timed out"))
	for range 50 {
		direct.add(time.Millisecond, nil)
		direct.add(3*time.Millisecond, nil)
	}
	row := Row{Fields: outboundFields(&leased, &direct, 2)}
	for field, want := range map[string]float64{
		"local_share": 0.8, "minimum_share": 0.7, "connects": 10, "failed": 1, "connect_p50_ms": 2, "connect_p88_ms": 30, "connect_p99_ms": 40, "direct_p50_ms": 1, "direct_p99_ms": 3,
	} {
		if got := row.Get(field); got != want {
			t.Errorf("%s is %v, want %v", field, got, want)
		}
	}
	// If more packets than connections waited, no connection counts as served locally.
	if got := (Row{Fields: outboundFields(&leased, &direct, 11)}).Get("local_share"); got != 0 {
		t.Errorf("local_share is %v, want 0", got)
	}
	if names := columns([]Row{row}); !slices.Contains(names, "connect_p96_ms") {
		t.Errorf("fields are %v", names)
	}
}
