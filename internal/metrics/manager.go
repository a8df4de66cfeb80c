package metrics

import (
	"context"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/store"
)

// ManagerFamilies are a manager's.
var ManagerFamilies = append([]*Family{
	fam(Gauge, "shunt_build_info", one, "1, with the version of the program in its labels.", "role", "version", "commit"),
	fam(Gauge, "shunt_manager_leader_epoch", one, "Leadership term of this manager."),
	fam(Gauge, "shunt_manager_leads", one, "1 while this manager leads and its lease has not run out; the sum over all managers is 1, and 0 while none leads."),
	fam(Gauge, "shunt_manager_revision", one, "Newest store revision that changed a plan."),
	fam(Gauge, "shunt_manager_nodes", "6", "Nodes by role and state: connected, away (was heard of before), never (has not joined, or was not heard of for a week).", "role", "state"),
	fam(Gauge, "shunt_manager_nodes_behind", "2", "Connected nodes that do not obey the newest revision yet.", "role"),
	fam(Gauge, "shunt_manager_nodes_error", "2", "Connected nodes that report an error.", "role"),
}, append(snatFamilies, keyFamilies...)...)

// Histograms of a manager; the buckets are those of latencyBuckets.
var (
	requestSeconds = fam(Histogram, "shunt_manager_request_duration_seconds", "one per method and result code in use, 14 lines each; at most 10 × 17", "Time to answer a call of the API, by method and Connect code (ok when it worked). Apply returns when the change is stored.", "method", "code")
	storeSeconds   = fam(Histogram, "shunt_manager_store_duration_seconds", "one per operation: get, list, txn, compact; 14 lines each", "Time of an operation on the store; a txn includes the write to disk.", "operation")
)

// ManagerHistograms are the manager's families that are observed at events, not at scrapes.
var ManagerHistograms = []*Family{requestSeconds, storeSeconds, snatSeconds}

// latencyBuckets range from a call answered from memory, 0.1 ms, to one that waits for nodes, 10 s.
var latencyBuckets = []float64{.0001, .0005, .001, .0025, .005, .01, .025, .05, .1, .5, 2, 10}

// Manager holds a manager's metrics. It is created before the manager, which uses its Store and
// Interceptor.
type Manager struct {
	name                       string
	build                      Build
	requests, storeOps, leases *prometheus.HistogramVec
}

// NewManager returns the metrics of a manager with this name.
func NewManager(name string, build Build) *Manager {
	histogram := func(f *Family) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: f.Name, Help: f.Help, Buckets: latencyBuckets, ConstLabels: prometheus.Labels{nodeLabel: name},
		}, f.Labels)
	}
	return &Manager{name, build, histogram(requestSeconds), histogram(storeSeconds), histogram(snatSeconds)}
}

// Registry registers the metrics; status returns the manager's view of its nodes.
func (m *Manager) Registry(status func() *apiv1.StatusResponse) (*Registry, error) {
	return register(m.requests, m.storeOps, m.leases, managerCollector{m.build, described(ManagerFamilies, m.name), status})
}

// Interceptor times the calls of the API, but not streams.
func (m *Manager) Interceptor() connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			began := time.Now()
			res, err := next(ctx, req)
			code := "ok"
			if err != nil {
				code = connect.CodeOf(err).String()
			}
			method := req.Spec().Procedure[strings.LastIndexByte(req.Spec().Procedure, '/')+1:]
			m.requests.WithLabelValues(method, code).Observe(time.Since(began).Seconds())
			return res, err
		}
	})
}

// Store times the operations of a store.
func (m *Manager) Store(s store.Store) store.Store { return timedStore{s, m.storeOps} }

type timedStore struct {
	store.Store
	ops *prometheus.HistogramVec
}

// took observes an operation; defer it with the start time.
func (s timedStore) took(operation string, began time.Time) {
	s.ops.WithLabelValues(operation).Observe(time.Since(began).Seconds())
}

// Get implements store.Store.
func (s timedStore) Get(ctx context.Context, key string) (store.KV, bool, int64, error) {
	defer s.took("get", time.Now())
	return s.Store.Get(ctx, key)
}

// List implements store.Store.
func (s timedStore) List(ctx context.Context, prefix string) (store.Snapshot, error) {
	defer s.took("list", time.Now())
	return s.Store.List(ctx, prefix)
}

// Txn implements store.Store.
func (s timedStore) Txn(ctx context.Context, t store.Txn) (store.TxnResult, error) {
	defer s.took("txn", time.Now())
	return s.Store.Txn(ctx, t)
}

// Compact implements store.Store.
func (s timedStore) Compact(ctx context.Context, revision int64) error {
	defer s.took("compact", time.Now())
	return s.Store.Compact(ctx, revision)
}

type managerCollector struct {
	build    Build
	families map[string]*Family
	status   func() *apiv1.StatusResponse
}

// Describe implements prometheus.Collector.
func (c managerCollector) Describe(out chan<- *prometheus.Desc) {
	for _, f := range c.families {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (c managerCollector) Collect(out chan<- prometheus.Metric) {
	s, status := sink{c.families, out}, c.status()
	s.put("shunt_build_info", 1, "manager", c.build.Version, c.build.Commit)
	s.put("shunt_manager_leader_epoch", float64(status.GetEpoch()))
	leads := 0.0
	if status.GetLeads() {
		leads = 1
	}
	s.put("shunt_manager_leads", leads)
	s.put("shunt_manager_revision", float64(status.GetRevision()))
	for _, role := range []string{"mux", "host"} {
		count := map[string]int{"connected": 0, "away": 0, "never": 0}
		behind, faulty := 0, 0
		for _, n := range status.GetNodes() {
			switch {
			case n.GetRole() != role:
				continue
			case n.GetConnected():
				count["connected"]++
			case n.GetLastSeen() != nil:
				count["away"]++
			default:
				count["never"]++
			}
			if n.GetConnected() && n.GetSyncedRevision() < status.GetRevision() {
				behind++
			}
			if n.GetConnected() && n.GetError() != "" {
				faulty++
			}
		}
		for state, n := range count {
			s.put("shunt_manager_nodes", float64(n), role, state)
		}
		s.put("shunt_manager_nodes_behind", float64(behind), role)
		s.put("shunt_manager_nodes_error", float64(faulty), role)
	}
	s.snat(status.GetSnatVips(), status.GetSnatCounts())
	s.keys(status.GetKeys(), time.Now())
}
