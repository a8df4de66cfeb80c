package lab_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// Files that operators import.
const (
	dashboardFile = "../../docs/ops/grafana-shunt.json"
	alertsFile    = "../../docs/ops/prometheus-alerts.yml"
)

// TestPrometheus runs every expression of the dashboard and of the alerts against a Prometheus that
// scrapes the lab.
func TestPrometheus(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{name: "metrics", number: 60, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1", "host2-vm1", "host3-vm1"}}
	web.rest = fmt.Sprintf("snat: [%q]\n", lab.VMAddresses(1, 1).V4.Addr())
	web.up(t)
	p := startPrometheus(t)
	expressions := append(dashboardExpressions(t), alertExpressions(t)...)
	if len(expressions) < 50 {
		t.Fatalf("found %d expressions only", len(expressions))
	}
	targets := web.targets()
	for _, e := range expressions {
		await(t, e.where+": series of "+e.query, func(ctx context.Context) error {
			if _, err := get(targets[0], "/"); err != nil { // so that counters change
				return err
			}
			n, err := p.series(ctx, e.query)
			if err == nil && n == 0 {
				err = errors.New("none")
			}
			return err
		})
	}
	for _, v := range dashboard(t).Templating.List {
		p.checkVariable(t, v.Name, v.Definition)
	}
	p.checkAlerts(t)
}

// expression is a query and its position.
type expression struct{ where, query string }

// importable is the part of a dashboard that Grafana reads on import.
type importable struct {
	Inputs []struct {
		Name, Type, PluginID string
	} `json:"__inputs"`
	Requires      []struct{ Type, ID string } `json:"__requires"`
	Title, UID    string
	SchemaVersion int
	ID            *int
	Templating    struct {
		List []struct{ Name, Type, Definition string }
	}
	Panels []struct {
		ID          int
		Type, Title string
		Datasource  struct{ Type, UID string }
		GridPos     struct{ H, W, X, Y int }
		Targets     []struct{ Expr, RefID string }
		FieldConfig struct{ Defaults struct{ Unit string } }
	}
}

func dashboard(t *testing.T) importable {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d importable
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// dashboardExpressions returns the queries of all panels with the variables filled in. It also
// checks that Grafana can import the file: one input for the data source that every panel uses,
// panel types that are required, and no two panels with one id or position.
func dashboardExpressions(t *testing.T) []expression {
	t.Helper()
	d := dashboard(t)
	if d.ID != nil || d.UID == "" || d.Title == "" || d.SchemaVersion < 30 || len(d.Inputs) != 1 || d.Inputs[0].Type != "datasource" {
		t.Errorf("%s: not as Grafana exports for sharing: %+v", dashboardFile, d)
	}
	required := map[string]bool{"row": true}
	for _, r := range d.Requires {
		required[r.ID] = true
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	var out []expression
	filled := strings.NewReplacer("$__rate_interval", "10s", "$node", ".*", "$service", ".*", "$vip", ".*", "[10m]", "[10s]")
	for _, p := range d.Panels {
		if !required[p.Type] || ids[p.ID] {
			t.Errorf("panel %q: type %q must be in __requires, id %d unique", p.Title, p.Type, p.ID)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other, taken := cells[cell]; taken || cell[0] >= 24 {
					t.Fatalf("panel %q: lies over %q", p.Title, other)
				}
				cells[cell] = p.Title
			}
		}
		if p.Type != "row" && p.Datasource.UID != "${"+d.Inputs[0].Name+"}" {
			t.Errorf("panel %q: data source %q must be the input", p.Title, p.Datasource.UID)
		}
		for _, q := range p.Targets {
			out = append(out, expression{"panel " + p.Title, filled.Replace(q.Expr)})
		}
	}
	return out
}

// comparison is at the end of every alert's expression.
var comparison = regexp.MustCompile(` (==|!=|<|>) [0-9.]+$`)

// alertExpressions returns the alerts' queries without their comparison, which hides series unless
// something is wrong.
func alertExpressions(t *testing.T) []expression {
	t.Helper()
	text, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	var out []expression
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			short := regexp.MustCompile(`\[\d+[mh]\]`).ReplaceAllString(strings.TrimSpace(r.Expr), "[10s]")
			if !comparison.MatchString(short) {
				t.Errorf("alert %s: must end in a comparison with a number", r.Alert)
			}
			out = append(out, expression{"alert " + r.Alert, comparison.ReplaceAllString(short, "")})
		}
	}
	return out
}

// prometheus is a Prometheus that runs in the lab's manager namespace.
type prometheus struct {
	client http.Client
}

const prometheusAddress = "127.0.0.1:9090"

// startPrometheus starts the distribution's Prometheus with the alert rules and every node of the
// lab as a target.
func startPrometheus(t *testing.T) *prometheus {
	t.Helper()
	for _, program := range []string{"prometheus", "promtool"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: make setup installs it", err)
		}
	}
	dir := t.TempDir()
	var targets []string
	for _, n := range shared.Topology.Nodes() {
		if n.Kind == lab.KindManager || n.Kind == lab.KindMux || n.Kind == lab.KindHost {
			targets = append(targets, fmt.Sprintf("%q", fmt.Sprintf("%s:%d", n.Addresses().V4.Addr(), lab.MetricsPort)))
		}
	}
	rules, err := filepath.Abs(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 500ms, evaluation_interval: 500ms}\nrule_files: [%q]\nscrape_configs:\n- job_name: shunt\n  static_configs:\n  - targets: [%s]\n", rules, strings.Join(targets, ", "))
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, check := range [][]string{{"check", "rules", rules}, {"check", "config", config}} {
		if out, err := exec.Command("promtool", check...).CombinedOutput(); err != nil {
			t.Fatalf("promtool %s: %v\n%s", strings.Join(check, " "), err, out)
		}
	}
	var log bytes.Buffer
	cmd := shared.Command("prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+prometheusAddress, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := shared.StartOn("manager1", cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("--- prometheus\n%s", &log)
		}
	})
	p := &prometheus{http.Client{Transport: &http.Transport{DialContext: netdev.Dialer(shared.Topology.Name + "-manager1")}, Timeout: eventually}}
	await(t, "every target answers Prometheus", func(ctx context.Context) error {
		n, err := p.series(ctx, "up == 1")
		if err == nil && n != len(targets) {
			err = fmt.Errorf("%d of %d", n, len(targets))
		}
		return err
	})
	return p
}

// ask calls Prometheus's API and decodes the data into out.
func (p *prometheus) ask(ctx context.Context, path string, query url.Values, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+prometheusAddress+"/api/v1/"+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	res, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return json.Unmarshal(answer.Data, out)
}

// series counts the series of a query's result.
func (p *prometheus) series(ctx context.Context, query string) (int, error) {
	var data struct{ Result []any }
	err := p.ask(ctx, "query", url.Values{"query": {query}}, &data)
	return len(data.Result), err
}

// checkVariable runs a variable's query: label_values(SELECTOR, LABEL).
func (p *prometheus) checkVariable(t *testing.T, name, definition string) {
	t.Helper()
	m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(definition)
	if m == nil {
		t.Errorf("variable %s: %q: must be label_values(SELECTOR, LABEL)", name, definition)
		return
	}
	var values []string
	selector := strings.ReplaceAll(m[1], "$service", ".*")
	if err := p.ask(t.Context(), "label/"+m[2]+"/values", url.Values{"match[]": {selector}}, &values); err != nil || len(values) == 0 {
		t.Errorf("variable %s: %v, %v", name, values, err)
	}
}

// checkAlerts checks that the rules run without an error, and that no alert fires.
func (p *prometheus) checkAlerts(t *testing.T) {
	t.Helper()
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Health, State, LastError string }
		}
	}
	if err := p.ask(t.Context(), "rules", nil, &data); err != nil {
		t.Fatal(err)
	}
	for _, g := range data.Groups {
		for _, r := range g.Rules {
			if r.Health != "ok" || r.State == "firing" {
				t.Errorf("alert %s: health %s, %s %s", r.Name, r.Health, r.State, r.LastError)
			}
		}
	}
}
