package metrics

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/dataplane"
)

// playAlerts runs promtool's unit tests of the alert rules: series and expectations are lists in its YAML, 15 seconds apart.
func playAlerts(t *testing.T, series, expectations string) {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatalf("%v: make setup installs it", err)
	}
	rules, err := filepath.Abs("../../docs/ops")
	if err != nil {
		t.Fatal(err)
	}
	test := "rule_files: [" + rules + "/prometheus-alerts.yml, " + rules + "/prometheus-slo.yml]\nevaluation_interval: 15s\ntests:\n- interval: 15s\n" +
		"  input_series:\n" + series + "  alert_rule_test:\n" + expectations
	file := filepath.Join(t.TempDir(), "test.yml")
	if err := os.WriteFile(file, []byte(test), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(promtool, "test", "rules", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "SUCCESS") {
		t.Errorf("promtool test rules: %v\n%s\n%s", err, out, test)
	}
}

// TestAlertNoLeader: an election is no alert, a time without a leader is, and which manager leads does not matter.
func TestAlertNoLeader(t *testing.T) {
	fires := `[{exp_labels: {severity: critical, job: shunt}, exp_annotations: {summary: "No manager leads: changes are refused, and servers get no ports for outbound connections", ` +
		`description: "A majority of the managers must run and reach each other; shunt member list says who does. Forwarding goes on by the last plan."}}]`
	playAlerts(t, `
  - {series: 'shunt_manager_leads{job="shunt",node="m1"}', values: '1 1 0 0 0 0 0 0 0 0 0'}
  - {series: 'shunt_manager_leads{job="shunt",node="m2"}', values: '0 0 0 1 1 1 0 0 0 0 0'}
  - {series: 'shunt_manager_leads{job="shunt",node="m3"}', values: '0 0 0 0 0 0 0 0 0 0 1'}
`, `
  - {alertname: ShuntNoLeader, eval_time: 15s, exp_alerts: []}
  - {alertname: ShuntNoLeader, eval_time: 30s, exp_alerts: []}
  - {alertname: ShuntNoLeader, eval_time: 60s, exp_alerts: []}
  - {alertname: ShuntNoLeader, eval_time: 105s, exp_alerts: []}
  - {alertname: ShuntNoLeader, eval_time: 120s, exp_alerts: `+fires+`}
  - {alertname: ShuntNoLeader, eval_time: 135s, exp_alerts: `+fires+`}
  - {alertname: ShuntNoLeader, eval_time: 150s, exp_alerts: []}
`)
}

// TestAlertDrops: drops of 2 % raise an alert, whatever the reason. No other class of packets does, even if it is all that a node handles; nor do a few
// drops of a node with hardly any packets.
func TestAlertDrops(t *testing.T) {
	for _, role := range []struct {
		name, alert, traffic, rest string
		reasons                    []dataplane.Reason
	}{
		{"mux", "ShuntDrops", "forwarded", "of the packets to VIPs", dataplane.MuxReasons().All},
		{"host", "ShuntHostDrops", "in_delivered", "of the packets of its servers", dataplane.HostReasons().All},
	} {
		var series, expectations strings.Builder
		add := func(node, reason string, class dataplane.Class, perStep int) {
			fmt.Fprintf(&series, "  - {series: 'shunt_%s_packets_total{node=\"%s\",reason=\"%s\",class=\"%s\"}', values: '0+%dx60'}\n", role.name, node, reason, class, perStep)
		}
		drops := 0
		for _, r := range role.reasons {
			// A node of its own for each reason: packets of it and nothing else, or 2 % of it if it is a drop.
			switch node := "node-" + r.Name; r.Class {
			case dataplane.ClassDrop:
				add(node, role.traffic, dataplane.ClassTX, 147_000)
				add(node, r.Name, r.Class, 3_000)
				drops++
			case dataplane.ClassInfo: // what was counted in addition was sent
				add(node, role.traffic, dataplane.ClassTX, 150_000)
				add(node, r.Name, r.Class, 150_000)
			default:
				add(node, r.Name, r.Class, 150_000)
			}
		}
		// A node with hardly any packets, of which most are dropped: 4 in a minute.
		add("node-idle", role.reasons[0].Name, role.reasons[0].Class, 1)
		for _, r := range role.reasons {
			if r.Class == dataplane.ClassDrop {
				add("node-idle", r.Name, r.Class, 1)
				break
			}
		}
		if drops < 10 || drops == len(role.reasons) {
			t.Fatalf("%s: %d of %d reasons are drops", role.name, drops, len(role.reasons))
		}
		fmt.Fprintf(&expectations, "  - alertname: %s\n    eval_time: 14m\n    exp_alerts:\n", role.alert)
		for _, r := range role.reasons {
			if r.Class != dataplane.ClassDrop {
				continue
			}
			description := "shunt top reasons shows the reasons."
			if role.name == "mux" {
				description = "shunt top reasons shows the reasons; shunt capture shows the packets."
			}
			fmt.Fprintf(&expectations, "    - {exp_labels: {severity: warning, node: node-%s}, exp_annotations: {summary: \"node-%[1]s drops 1.98%% %s\", description: \"%s\"}}\n",
				r.Name, role.rest, description)
		}
		playAlerts(t, series.String(), expectations.String())
	}
}

// TestAlertUneven: a mux with most of a VIP's packets raises an alert. Muxes that share evenly do not, nor does a mux that does not advertise the VIP, a mux
// that alone has a VIP, or a VIP with few packets.
func TestAlertUneven(t *testing.T) {
	var series strings.Builder
	add := func(vip, node string, advertised, perStep int) {
		fmt.Fprintf(&series, "  - {series: 'shunt_mux_vip_advertised{vip=\"%s\",node=\"%s\"}', values: '%dx160'}\n", vip, node, advertised)
		for port := range 2 { // two endpoints
			fmt.Fprintf(&series, "  - {series: 'shunt_mux_endpoint_packets_total{vip=\"%s\",node=\"%s\",port=\"%d\"}', values: '0+%dx160'}\n", vip, node, port, perStep)
		}
	}
	for _, node := range []string{"m1", "m2", "m3", "m4"} {
		heavy := 1_000_000
		if node != "m1" {
			heavy = 100_000
		}
		add("uneven", node, 1, heavy)
		add("even", node, 1, 1_000_000)
		add("few", node, 1, heavy/10_000)
		// m4 is drained: the others share evenly, though m4 lowers the mean of all.
		drained := 1
		if node != "m1" {
			drained = 0
		}
		add("drained", node, drained, heavy*drained)
	}
	add("alone", "m1", 1, 1_000_000)
	playAlerts(t, series.String(), `
  - {alertname: ShuntMuxesUneven, eval_time: 14m, exp_alerts: []}
  - alertname: ShuntMuxesUneven
    eval_time: 20m
    exp_alerts:
    - exp_labels: {severity: warning, vip: uneven}
      exp_annotations:
        summary: "One mux gets 3.008 times the mean of the packets to uneven"
        description: "The router does not spread connections evenly: it must hash addresses and ports (docs/ops/bgp.md, load of the muxes). shunt top nodes shows the packets of each mux."
`)
}

// TestAvailabilityRules: a VIP that no place reaches raises an alert, and a place that alone does not reach it another one. A single failed probe of one
// place raises neither.
func TestAvailabilityRules(t *testing.T) {
	playAlerts(t, `
  - {series: 'probe_success{job="shunt-vips",vip="good",instance="p1"}', values: '1x80'}
  - {series: 'probe_success{job="shunt-vips",vip="good",instance="p2"}', values: '1x20 0 1x59'}
  - {series: 'probe_success{job="shunt-vips",vip="gone",instance="p1"}', values: '1x20 0x60'}
  - {series: 'probe_success{job="shunt-vips",vip="gone",instance="p2"}', values: '1x20 0x60'}
  - {series: 'probe_success{job="shunt-vips",vip="cut",instance="p1"}', values: '1x20 0x60'}
  - {series: 'probe_success{job="shunt-vips",vip="cut",instance="p2"}', values: '1x80'}
`, `
  - {alertname: ShuntVIPUnavailable, eval_time: 5m, exp_alerts: []}
  - {alertname: ShuntVIPPlaceCutOff, eval_time: 5m, exp_alerts: []}
  - alertname: ShuntVIPUnavailable
    eval_time: 12m
    exp_alerts:
    - exp_labels: {severity: critical, vip: gone}
      exp_annotations:
        summary: "Clients reach gone in 0% of attempts, from every place"
        description: "shunt trace --from PROBE:50000 --to VIP:PORT shows where its packets go; shunt get events lists changes of that time."
  - alertname: ShuntVIPPlaceCutOff
    eval_time: 12m
    exp_alerts:
    - exp_labels: {severity: warning, vip: cut, instance: p1}
      exp_annotations:
        summary: "p1 reaches cut in 0% of attempts, other places do"
        description: "Look at the network between that place and the routers of the VIP."
  - alertname: ShuntVIPObjectiveMissed
    eval_time: 12m
    exp_alerts:
    - exp_labels: {severity: warning, vip: gone}
      exp_annotations: {summary: "gone was available in 66.67% of the intervals of 30 days; the objective is 99.95 %"}
`)
}
