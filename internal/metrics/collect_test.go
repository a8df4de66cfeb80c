package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/probe"
	"github.com/shuntlb/shunt/internal/store"
)

var web = lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}

// status returns a report with one of everything.
func status() *apiv1.NodeStatus {
	return &apiv1.NodeStatus{
		Suspect: true, UnreachedHosts: []string{"10.20.1.1"}, UnconfirmedHosts: []string{"10.20.2.1", "10.20.3.1"},
		Members: []*apiv1.MemberStatus{
			{Service: "web", Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Dip: "10.20.1.11", DipPort: 8080, Member: 1, Alive: true, Packets: 7, Bytes: 700, Weight: 10, Flows: 3},
			{Service: "web", Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Dip: "2001:db8:20:1::11", DipPort: 8080, Member: 2, Damped: true},
			{Service: "any", Vip: "203.0.113.11", Protocol: "any", PortEnd: 65535, Dip: "10.20.1.11", Member: 1, Alive: true, Draining: true, Held: true},
			{Service: "ftp", Vip: "203.0.113.11", Protocol: "tcp", Port: 8000, PortEnd: 8100, Dip: "10.20.1.11", Member: 1, Alive: true},
		},
		Reasons: []*apiv1.ReasonCount{{Reason: "forwarded", Packets: 7, Class: "tx"}, {Reason: "no_endpoint", Class: "drop"}},
		Routes:  []*apiv1.RouteStatus{{Prefix: "203.0.113.10/32", Advertised: true}, {Prefix: "203.0.113.11/32"}},
		Peers:   []*apiv1.PeerStatus{{Address: "10.10.0.1", State: "established", Bfd: "up", Losses: 3}, {Address: "10.10.0.2", State: "idle"}},
		Tables:  []*apiv1.TableStatus{{Name: "flows", Used: 3, Capacity: 100}},
		Flows:   []*apiv1.FlowClassStatus{{Class: "trusted", Flows: 3}},
	}
}

// probes returns the statistics of an engine.
func probes() probe.Stats {
	s := probe.Stats{
		Late: 6, Unaskable: 3, Crowded: 2, Met: probe.Met{Starved: 4, Again: 11, Unproven: 12, Stuck: 13}, Means: []probe.MeansStats{{Name: "packet", Targets: 7, Asked: 8}, {Name: "loop"}},
		Kinds: []probe.KindStats{{Name: "tcp", Good: 5, Bad: 2, Void: 1}, {Name: "http"}, {Name: "dns", Bad: 9}},
	}
	took := &s.Kinds[0].Took
	took.Counts[0], took.Counts[3], took.Counts[len(probe.Bounds)], took.Sum = 2, 2, 1, 13*time.Second
	return s
}

func muxOf(s *apiv1.NodeStatus) Mux {
	return Mux{
		Node: Node{Name: "mux1", Status: func() *apiv1.NodeStatus { return s }, Progress: &agent.Progress{}, Starts: 2, Probes: probes},
		Counters: func() (dataplane.MuxCounters, error) {
			return dataplane.MuxCounters{Endpoints: map[lb.EndpointKey]dataplane.Counter{web: {Packets: 9, Bytes: 900}}}, nil
		},
		Flips: func() map[dataplane.MemberKey]uint64 {
			return map[dataplane.MemberKey]uint64{{Endpoint: web, Member: 2}: 5}
		},
		Captures:  func() int { return 1 },
		Overruled: func() (int, int) { return 3, 4 },
		Schedulers: func() []Scheduler {
			return []Scheduler{{web, lb.SchedulerP2C, 2}, {lb.EndpointKey{}, lb.SchedulerP2C, 9}}
		},
		LoadOf: func(e lb.EndpointKey, member uint16) (load.Load, bool) {
			if e != web || member != 1 {
				return load.Load{}, false
			}
			return load.Load{Connections: 31, CPU: 250, Given: 0.5, Has: load.HasConnections | load.HasCPU | load.HasGiven}, true
		},
	}
}

// lines returns the series of a registry's own families, as `name{label="value",…} value`.
func lines(t *testing.T, r *Registry, known ...[]*Family) []string {
	t.Helper()
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]*Family{}
	for _, f := range slices.Concat(known...) {
		declared[f.Name] = f
	}
	var out []string
	for _, mf := range all {
		if !strings.HasPrefix(mf.GetName(), "shunt_") {
			continue
		}
		f := declared[mf.GetName()]
		if f == nil {
			t.Errorf("%s is in no list of families", mf.GetName())
			continue
		}
		if got := strings.ToLower(mf.GetType().String()); got != string(f.Type) {
			t.Errorf("%s: type %s, declared as %s", mf.GetName(), got, f.Type)
		}
		if (f.Type == Counter) != strings.HasSuffix(f.Name, "_total") {
			t.Errorf("%s: counters, and nothing else, end in _total", f.Name)
		}
		for _, m := range mf.Metric {
			out = append(out, line(f.Name, m))
		}
		delete(declared, f.Name)
	}
	for name := range declared {
		t.Errorf("%s: the test's status gives it no series", name)
	}
	return out
}

func line(name string, m *dto.Metric) string {
	var labels []string
	for _, l := range m.Label {
		if l.GetName() != nodeLabel {
			labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
		}
	}
	value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
	return fmt.Sprintf("%s{%s} %v", name, strings.Join(labels, ","), value)
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !slices.Contains(got, w) {
			name, _, _ := strings.Cut(w, "{")
			t.Errorf("no %s among\n  %s", w, strings.Join(slices.DeleteFunc(slices.Clone(got), func(s string) bool { return !strings.HasPrefix(s, name) }), "\n  "))
		}
	}
}

func TestMux(t *testing.T) {
	r, err := NewMux(muxOf(status()))
	if err != nil {
		t.Fatal(err)
	}
	expect(t, lines(t, r, NodeFamilies, ProbeFamilies, MuxFamilies),
		`shunt_agent_starts_total{} 2`,
		`shunt_backend_connections{backend="10.20.1.11:8080",port="80",protocol="tcp",service="web",vip="203.0.113.10"} 31`,
		`shunt_backend_load{backend="10.20.1.11:8080",port="80",protocol="tcp",service="web",source="cpu",vip="203.0.113.10"} 0.25`,
		`shunt_backend_load{backend="10.20.1.11:8080",port="80",protocol="tcp",service="web",source="application",vip="203.0.113.10"} 0.5`,
		`shunt_mux_packets_total{class="tx",reason="forwarded"} 7`,
		`shunt_mux_packets_total{class="drop",reason="no_endpoint"} 0`,
		`shunt_mux_endpoint_packets_total{port="80",protocol="tcp",service="web",vip="203.0.113.10"} 9`,
		`shunt_mux_endpoint_members{port="80",protocol="tcp",service="web",state="dead",vip="203.0.113.10"} 1`,
		`shunt_mux_scheduler_stale_members{port="80",protocol="tcp",scheduler="p2c",service="web",vip="203.0.113.10"} 2`,
		`shunt_mux_endpoint_members{port="*",protocol="any",service="any",state="draining",vip="203.0.113.11"} 1`,
		`shunt_mux_backend_bytes_total{backend="10.20.1.11:8080",port="80",protocol="tcp",service="web",vip="203.0.113.10"} 700`,
		`shunt_mux_backend_alive{backend="10.20.1.11",port="8000-8100",protocol="tcp",service="ftp",vip="203.0.113.11"} 1`,
		`shunt_mux_health_flips_total{backend="[2001:db8:20:1::11]:8080",port="80",protocol="tcp",service="web",vip="203.0.113.10"} 5`,
		`shunt_mux_vip_advertised{vip="203.0.113.10"} 1`,
		`shunt_mux_bgp_session_up{peer="10.10.0.2"} 0`,
		`shunt_mux_bgp_session_losses_total{peer="10.10.0.1"} 3`,
		`shunt_mux_bfd_session_up{peer="10.10.0.1"} 1`,
		`shunt_mux_table_used{table="flows"} 3`,
		`shunt_mux_flows{class="trusted"} 3`, `shunt_mux_flows{class="closing"} 0`,
		`shunt_mux_captures_running{} 1`,
		`shunt_metrics_omitted{kind="backends"} 0`,
		`shunt_probe_rules{engine="packet"} 7`, `shunt_probes_asked_total{engine="packet"} 8`, `shunt_probe_rules{engine="loop"} 0`,
		`shunt_probes_total{kind="tcp",verdict="good"} 5`, `shunt_probes_total{kind="tcp",verdict="bad"} 2`, `shunt_probes_total{kind="tcp",verdict="void"} 1`,
		`shunt_probes_total{kind="dns",verdict="good"} 0`, `shunt_probes_total{kind="dns",verdict="bad"} 9`,
		`shunt_probes_late_total{} 6`, `shunt_probe_unaskable{} 3`, `shunt_probe_crowded{} 2`, `shunt_probes_starved_total{} 4`,
		`shunt_probe_connections_again_total{} 11`, `shunt_probe_unproven_total{} 12`, `shunt_probe_programs_stuck{} 13`,
		`shunt_health_flips_total{port="80",protocol="tcp",service="web",vip="203.0.113.10"} 5`,
		`shunt_health_suspect{} 1`, `shunt_health_held{} 1`, `shunt_health_damped{} 1`,
		`shunt_health_hosts_unreached{} 1`, `shunt_health_hosts_unconfirmed{} 2`,
		`shunt_health_overruled{cause="panic"} 3`, `shunt_health_overruled{cause="fail-open"} 4`,
	)
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, mf := range all {
		if mf.GetName() != "shunt_probe_duration_seconds" {
			continue
		}
		kinds := map[string]*dto.Histogram{}
		for _, m := range mf.Metric {
			kinds[m.GetLabel()[0].GetValue()] = m.GetHistogram()
		}
		// There was no probe by http.
		if len(kinds) != 2 || kinds["dns"].GetSampleCount() != 0 {
			t.Errorf("durations of %v", kinds)
		}
		h := kinds["tcp"]
		var got []uint64
		for _, b := range h.GetBucket()[:4] {
			got = append(got, b.GetCumulativeCount())
		}
		if h.GetSampleCount() != 5 || h.GetSampleSum() != 13 || !slices.Equal(got, []uint64{2, 2, 2, 4}) || h.GetBucket()[0].GetUpperBound() != 0.0001 {
			t.Errorf("durations: %v", h)
		}
	}
}

// TestSeriesAreBounded: a mux with many backends leaves their series out and reports that.
func TestSeriesAreBounded(t *testing.T) {
	s := status()
	for i := range MaxBackends {
		s.Members = append(s.Members, &apiv1.MemberStatus{Service: "big", Vip: "203.0.113.12", Protocol: "tcp", Port: 80, Dip: fmt.Sprintf("10.%d.%d.1", i>>8, i&255), Alive: true})
	}
	r, err := NewMux(muxOf(s))
	if err != nil {
		t.Fatal(err)
	}
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, mf := range all {
		if strings.HasPrefix(mf.GetName(), "shunt_mux_backend") {
			t.Errorf("%s has %d series", mf.GetName(), len(mf.Metric))
		}
		for _, m := range mf.Metric {
			if len(all) > 0 && strings.HasPrefix(mf.GetName(), "shunt_") {
				got = append(got, line(mf.GetName(), m))
			}
		}
	}
	expect(t, got,
		fmt.Sprintf(`shunt_metrics_omitted{kind="backends"} %d`, len(s.Members)),
		fmt.Sprintf(`shunt_mux_endpoint_members{port="80",protocol="tcp",service="big",state="alive",vip="203.0.113.12"} %d`, MaxBackends),
	)
}

func TestHost(t *testing.T) {
	s := status()
	s.Members = append(s.Members, s.Members[0]) // the same backend with another outer address
	s.Tables = append(s.Tables, &apiv1.TableStatus{Name: "flow_addresses", Capacity: 7})
	s.Servers = []*apiv1.ServerStatus{{Dip: "10.20.1.11", PacketsIn: 21, BytesIn: 22, FlowsIn: 23, PacketsOut: 24, BytesOut: 25, FlowsOut: 26}}
	r, err := NewHost(Node{Name: "host1", Probes: probes, Status: func() *apiv1.NodeStatus { return s }})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, lines(t, r, NodeFamilies, ProbeFamilies, HostFamilies),
		`shunt_host_bindings{} 5`,
		`shunt_host_packets_total{class="tx",reason="forwarded"} 7`,
		`shunt_host_backend_packets_total{backend="10.20.1.11:8080",port="80",protocol="tcp",service="web",vip="203.0.113.10"} 14`,
		`shunt_host_flows{class="trusted"} 3`, `shunt_host_flows{class="untrusted"} 0`, `shunt_host_flows{class="closing"} 0`,
		`shunt_host_table_used{table="flows"} 3`, `shunt_host_table_capacity{table="flows"} 100`,
		`shunt_host_server_packets_total{dip="10.20.1.11",direction="in"} 21`, `shunt_host_server_packets_total{dip="10.20.1.11",direction="out"} 24`,
		`shunt_host_server_bytes_total{dip="10.20.1.11",direction="in"} 22`, `shunt_host_server_bytes_total{dip="10.20.1.11",direction="out"} 25`,
		`shunt_host_server_flows_total{dip="10.20.1.11",direction="in"} 23`, `shunt_host_server_flows_total{dip="10.20.1.11",direction="out"} 26`,
		`shunt_host_table_used{table="flow_addresses"} 0`, `shunt_host_table_capacity{table="flow_addresses"} 7`,
	)
}

func TestManager(t *testing.T) {
	m := NewManager("manager1", Build{"v1", "c"})
	r, err := m.Registry(func() *apiv1.StatusResponse {
		return &apiv1.StatusResponse{Revision: 5, Epoch: 2, Leads: true, Nodes: []*apiv1.NodeStatus{
			{Role: "mux", Connected: true, SyncedRevision: 5}, {Role: "mux", Connected: true, SyncedRevision: 4, Error: "full"},
			{Role: "mux", LastSeen: timestamppb.Now()}, {Role: "host"},
		}, SnatVips: []*apiv1.SnatVIPStatus{{Service: "web", Tenant: "shop", Vip: "203.0.113.10", Leased: 16, Free: 800, Resting: 8}}, SnatCounts: &apiv1.SnatCounts{
			Asks: 9, RepeatedAsks: 2, Grants: 5, Granted: 10, Freed: 3, Silent: 4, Queued: 6, Telling: 1, Refused: []*apiv1.SnatRefused{{Reason: "exhausted", Count: 2}},
		}, Keys: []*apiv1.KeyCount{
			{Purpose: "cookie", Phase: "spread"}, {Purpose: "cookie", Phase: "rest", Sets: 3, Since: timestamppb.New(time.Now().Add(-time.Hour)), Made: timestamppb.Now()},
			{Purpose: "cid", Phase: "spread"},
		}}
	})
	if err != nil {
		t.Fatal(err)
	}
	kv := m.Store(store.NewMemory())
	if _, err := kv.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put("k", nil)}}); err != nil {
		t.Fatal(err)
	}
	call := m.Interceptor().WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
		return nil, connect.NewError(connect.CodeAborted, errors.New("changed"))
	})
	_, _ = call(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{}))
	m.SNATLeased(time.Millisecond, 2*time.Millisecond, 3*time.Millisecond)
	expect(t, lines(t, r, ManagerFamilies, ManagerHistograms),
		`shunt_snat_ranges{service="web",state="leased",tenant="shop",vip="203.0.113.10"} 2`,
		`shunt_snat_ranges{service="web",state="free",tenant="shop",vip="203.0.113.10"} 100`,
		`shunt_snat_ranges{service="web",state="resting",tenant="shop",vip="203.0.113.10"} 1`,
		`shunt_snat_asks_total{} 9`, `shunt_snat_repeated_asks_total{} 2`, `shunt_snat_grants_total{} 5`, `shunt_snat_ranges_granted_total{} 10`,
		`shunt_snat_ranges_freed_total{} 3`, `shunt_snat_refused_total{reason="exhausted"} 2`, `shunt_snat_mux_silences_total{} 4`,
		`shunt_snat_asks_waiting{for="turn"} 6`, `shunt_snat_asks_waiting{for="mux"} 1`, `shunt_snat_lease_seconds{part="store"} 0`,
		`shunt_keys{phase="spread",purpose="cookie"} 0`, `shunt_keys{phase="rest",purpose="cookie"} 3`, `shunt_keys{phase="spread",purpose="cid"} 0`,
		`shunt_keys_waiting_seconds{purpose="cookie"} 0`, `shunt_keys_waiting_seconds{purpose="cid"} 0`, `shunt_keys_age_seconds{purpose="cid"} 0`,
		`shunt_manager_leader_epoch{} 2`, `shunt_manager_leads{} 1`, `shunt_manager_revision{} 5`,
		`shunt_manager_nodes{role="mux",state="connected"} 2`, `shunt_manager_nodes{role="mux",state="away"} 1`,
		`shunt_manager_nodes{role="host",state="never"} 1`,
		`shunt_manager_nodes_behind{role="mux"} 1`, `shunt_manager_nodes_error{role="mux"} 1`,
		`shunt_manager_store_duration_seconds{operation="txn"} 0`,
		`shunt_manager_request_duration_seconds{code="aborted",method=""} 0`,
	)
}

// serving serves the metrics of a mux until the test ends, and returns the listener.
func serving(t *testing.T, profiles bool) net.Listener {
	t.Helper()
	r, err := NewMux(muxOf(status()))
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- Serve(ctx, l, r, profiles) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l
}

// page reads a page of a listener.
func page(t *testing.T, l net.Listener, path string) (status int, text string) {
	t.Helper()
	res, err := http.Get("http://" + l.Addr().String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

func TestServe(t *testing.T) {
	l := serving(t, false)
	if _, err := Listen(l.Addr().String()); err == nil || !strings.Contains(err.Error(), "another process listens there") {
		t.Errorf("taken port: %v", err)
	}
	if code, text := page(t, l, "/metrics"); code != http.StatusOK || !strings.Contains(text, `shunt_agent_starts_total{node="mux1"} 2`) {
		t.Errorf("scrape: status %d\n%s", code, text)
	}
	if code, _ := page(t, l, "/debug/pprof/heap"); code != http.StatusNotFound {
		t.Errorf("a profile without --pprof: status %d", code)
	}
}

// TestServeProfiles: with profiles the listener also serves those of net/http/pprof.
func TestServeProfiles(t *testing.T) {
	l := serving(t, true)
	for path, want := range map[string]string{"": "goroutine", "goroutine?debug=1": "goroutine profile: total", "symbol": "num_symbols: 1"} {
		if code, text := page(t, l, "/debug/pprof/"+path); code != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("/debug/pprof/%s: status %d, without %q", path, code, want)
		}
	}
}

func TestStartsAreCounted(t *testing.T) {
	dir := t.TempDir()
	for want := uint64(1); want < 4; want++ {
		if got, err := CountStart(dir); err != nil || got != want {
			t.Errorf("start %d: %d, %v", want, got, err)
		}
	}
}
