package metrics

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestAlertNoLeader: promtool plays series of managers against the alert rules. An election is no alert, a time without a leader is, and which manager
// leads does not matter.
func TestAlertNoLeader(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatalf("%v: make setup installs it", err)
	}
	rules, err := filepath.Abs("../../docs/ops/prometheus-alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	fires := `[{exp_labels: {severity: critical, job: shunt}, exp_annotations: {summary: "No manager leads: changes are refused, and servers get no ports for outbound connections", ` +
		`description: "A majority of the managers must run and reach each other; shunt member list says who does. Forwarding goes on by the last plan."}}]`
	test := `
rule_files: [` + rules + `]
evaluation_interval: 15s
tests:
- interval: 15s
  input_series:
  - {series: 'shunt_manager_leads{job="shunt",node="m1"}', values: '1 1 0 0 0 0 0 0 0 0 0'}
  - {series: 'shunt_manager_leads{job="shunt",node="m2"}', values: '0 0 0 1 1 1 0 0 0 0 0'}
  - {series: 'shunt_manager_leads{job="shunt",node="m3"}', values: '0 0 0 0 0 0 0 0 0 0 1'}
  alert_rule_test:
  - {alertname: ShuntNoLeader, eval_time: 15s, exp_alerts: []}
  - {alertname: ShuntNoLeader, eval_time: 30s, exp_alerts: []}
  - {alertname: ShuntNoLeader, eval_time: 60s, exp_alerts: []}
  - {alertname: ShuntNoLeader, eval_time: 105s, exp_alerts: []}
  - {alertname: ShuntNoLeader, eval_time: 120s, exp_alerts: ` + fires + `}
  - {alertname: ShuntNoLeader, eval_time: 135s, exp_alerts: ` + fires + `}
  - {alertname: ShuntNoLeader, eval_time: 150s, exp_alerts: []}
`
	file := filepath.Join(t.TempDir(), "test.yml")
	if err := os.WriteFile(file, []byte(test), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(promtool, "test", "rules", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "SUCCESS") {
		t.Errorf("promtool test rules: %v\n%s", err, out)
	}
}
