package chaos

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// agree returns nil if all members have the same store and one leader, all nodes are connected and
// have applied the newest revision by their reports to the leader, and their data planes match the
// store.
func agree(ctx context.Context) error {
	if err := membersAgree(ctx); err != nil {
		return err
	}
	services, err := storedServices(ctx)
	if err != nil {
		return err
	}
	status, err := anyone.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{}))
	if err != nil {
		return err
	}
	if n := len(status.Msg.GetNodes()); n != cluster.Topology.Muxes+cluster.Topology.Hosts.Count {
		return fmt.Errorf("%d nodes", n)
	}
	for _, n := range status.Msg.GetNodes() {
		if !n.GetConnected() || n.GetError() != "" || n.GetSyncedRevision() < status.Msg.GetRevision() {
			return fmt.Errorf("%s: connected %v, revision %d of %d: %s", n.GetName(), n.GetConnected(), n.GetSyncedRevision(), status.Msg.GetRevision(), n.GetError())
		}
	}
	if err := muxesAgree(ctx, services); err != nil {
		return err
	}
	if err := routerAgrees(); err != nil {
		return err
	}
	return hostsAgree(ctx, services, status.Msg.GetEpoch())
}

// membersAgree checks that all members are healthy, and that one of them leads.
func membersAgree(ctx context.Context) error {
	members, err := anyone.Members(ctx, connect.NewRequest(&apiv1.MembersRequest{}))
	if err != nil {
		return err
	}
	leaders := 0
	for _, m := range members.Msg.GetMembers() {
		if !m.GetHealthy() {
			return fmt.Errorf("%s: %s", m.GetName(), m.GetError())
		}
		if m.GetLeader() {
			leaders++
		}
	}
	if n := len(members.Msg.GetMembers()); n != cluster.Topology.Managers || leaders != 1 {
		return fmt.Errorf("%d managers, of which %d lead", n, leaders)
	}
	return nil
}

// storedServices returns the services of the store, which must be equal at every member.
func storedServices(ctx context.Context) ([]*apiv1.Object, error) {
	var first *apiv1.GetResponse
	for _, name := range named(lab.KindManager, cluster.Topology.Managers) {
		res, err := managers[name].Get(ctx, connect.NewRequest(&apiv1.GetRequest{Kind: "Service"}))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if first == nil {
			first = res.Msg
			continue
		}
		if !slices.EqualFunc(first.GetObjects(), res.Msg.GetObjects(), func(a, b *apiv1.Object) bool { return proto.Equal(a, b) }) {
			return nil, fmt.Errorf("%s and manager1 have different services", name)
		}
	}
	return first.GetObjects(), nil
}

// muxesAgree checks at the data plane of every mux where a new flow to each VIP goes.
func muxesAgree(ctx context.Context, services []*apiv1.Object) error {
	stored := map[string]*apiv1.Service{}
	for _, o := range services {
		stored[o.GetService().GetName()] = o.GetService()
	}
	var checks []func() error
	for _, s := range stored {
		port, err := strconv.ParseUint(s.GetEndpoints()[0].GetPort(), 10, 16)
		if err != nil {
			return err
		}
		for family, vip := range s.GetVip() {
			checks = append(checks, func() error {
				if err := traced(ctx, vip, uint32(port), dips(s, family)); err != nil {
					return fmt.Errorf("%s: %w", s.GetName(), err)
				}
				return nil
			})
		}
	}
	for key := range maxKeys {
		if stored[registerName(key)] != nil {
			continue
		}
		checks = append(checks, func() error {
			if err := traced(ctx, registerVIPsOf(key)[key%families].String(), 80, nil); err != nil {
				return fmt.Errorf("%s, which is not there: %w", registerName(key), err)
			}
			return nil
		})
	}
	return firstError(checks)
}

// tracers is how many traces are made at the same time.
const tracers = 8

// firstError calls all functions, tracers at the same time, and returns the first error in order.
func firstError(checks []func() error) error {
	errs := make([]error, len(checks))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range tracers {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(checks)); i = next.Add(1) - 1 {
				errs[i] = checks[i]()
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// routerAgrees checks that every mux has one speaker, and that the router has a route to each VIP
// of the long connections through it.
func routerAgrees() error {
	for _, mux := range named(lab.KindMux, cluster.Topology.Muxes) {
		n, err := cluster.Speakers(mux)
		if err != nil {
			return err
		}
		if len(n) != 1 {
			return fmt.Errorf("%s has the speakers %v", mux, n)
		}
	}
	for i := range echoes {
		for _, vip := range echoVIPs(i) {
			hops, err := cluster.RoutesAtRouter(netip.PrefixFrom(vip, vip.BitLen()))
			if err != nil {
				return err
			}
			if len(hops) != cluster.Topology.Muxes {
				return fmt.Errorf("the router has %s through %v", vip, hops)
			}
		}
	}
	return nil
}

// dips returns the DIPs of a service's backends of the family of a VIP.
func dips(s *apiv1.Service, family int) []string {
	var out []string
	for _, b := range s.GetEndpoints()[0].GetBackends() {
		out = append(out, b.GetDip()[family])
	}
	return out
}

// strangers are clients without flows at any node.
var strangers = lab.ClientAddresses(89)

// traced checks that every mux sends a flow to the same one of the DIPs, or drops it if there are
// none.
func traced(ctx context.Context, vip string, port uint32, dips []string) error {
	to, err := netip.ParseAddr(vip)
	if err != nil {
		return err
	}
	trace, err := anyone.Trace(ctx, connect.NewRequest(&apiv1.TraceRequest{Client: ofFamily(strangers, to).String(), ClientPort: 20000, Vip: vip, Port: port, Protocol: "tcp"}))
	if err != nil {
		return err
	}
	results := trace.Msg.GetResults()
	if len(results) != cluster.Topology.Muxes {
		return fmt.Errorf("%d muxes answer", len(results))
	}
	for _, r := range results {
		switch forwarded := r.GetVerdict() == "forwarded"; {
		case r.GetError() != "":
			return fmt.Errorf("%s: %s", r.GetNode(), r.GetError())
		case forwarded != (len(dips) > 0):
			return fmt.Errorf("%s: %s, and the store has backends %v", r.GetNode(), r.GetVerdict(), dips)
		case forwarded && (!slices.Contains(dips, r.GetDip()) || r.GetDip() != results[0].GetDip()):
			return fmt.Errorf("%s sends it to %s, %s to %s, and the store has backends %v", r.GetNode(), r.GetDip(), results[0].GetNode(), results[0].GetDip(), dips)
		}
	}
	return nil
}

// hostsAgree reads from every node the epoch that it has applied, and from every host the bindings
// of its data plane.
func hostsAgree(ctx context.Context, services []*apiv1.Object, epoch int64) error {
	wanted := map[string][]string{}
	for _, o := range services {
		s := o.GetService()
		for _, b := range s.GetEndpoints()[0].GetBackends() {
			for family, vip := range s.GetVip() {
				backend := net.JoinHostPort(b.GetDip()[family], strconv.Itoa(int(b.GetPort())))
				wanted[b.GetHost()] = append(wanted[b.GetHost()], fmt.Sprintf("%s to %s", vip, backend))
			}
		}
	}
	for _, n := range cluster.Topology.Nodes() {
		if n.Kind != lab.KindMux && n.Kind != lab.KindHost {
			continue
		}
		m, err := metricsOf(ctx, n)
		if err != nil {
			return err
		}
		if m.epoch != fmt.Sprint(epoch) {
			return fmt.Errorf("%s obeys epoch %s, the leader's is %d", n.Name, m.epoch, epoch)
		}
		if n.Kind != lab.KindHost {
			continue
		}
		want := map[string]bool{}
		for _, binding := range wanted[n.Addresses().V4.Addr().String()] {
			want[binding] = true
		}
		if !maps.Equal(want, m.bindings) {
			return fmt.Errorf("%s is bound to %v, the store says %v", n.Name, slices.Sorted(maps.Keys(m.bindings)), slices.Sorted(maps.Keys(want)))
		}
	}
	return nil
}

// nodeMetrics holds a node's own metrics.
type nodeMetrics struct {
	epoch string
	// version of the program.
	version string
	// bindings of a host's data plane: VIP to DIP:port.
	bindings map[string]bool
	// alive lists the backends that a mux finds healthy, once for each service of the long
	// connections.
	alive []string
}

var (
	versionLine = regexp.MustCompile(`^shunt_build_info\{.*version="([^"]*)"`)
	epochLine   = regexp.MustCompile(`^shunt_plan_epoch\{.*\} (\d+)$`)
	aliveLine   = regexp.MustCompile(`^shunt_mux_backend_alive\{backend="([^"]*)",.*service="(?:` + strings.Join(echoNames(), "|") + `)",.*\} 1$`)
	bindingLine = regexp.MustCompile(`^shunt_host_backend_packets_total\{backend="([^"]*)",.*,vip="([^"]*)"\}`)
)

// metricsOf reads the metrics of a node, from the router.
func metricsOf(ctx context.Context, n lab.Node) (nodeMetrics, error) {
	transport := &http.Transport{DialContext: netdev.Dialer(lab.Node{Name: "router1"}.Namespace(cluster.Topology.Name))}
	defer transport.CloseIdleConnections()
	address := netip.AddrPortFrom(n.Addresses().V4.Addr(), lab.MetricsPort)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/metrics", address), nil)
	if err != nil {
		return nodeMetrics{}, err
	}
	res, err := transport.RoundTrip(request)
	if err != nil {
		return nodeMetrics{}, fmt.Errorf("metrics of %s: %w", n.Name, err)
	}
	defer res.Body.Close()
	return readMetrics(res.Body)
}

func readMetrics(r io.Reader) (nodeMetrics, error) {
	m := nodeMetrics{bindings: map[string]bool{}}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if found := versionLine.FindStringSubmatch(line); found != nil {
			m.version = found[1]
		}
		if found := epochLine.FindStringSubmatch(line); found != nil {
			m.epoch = found[1]
		}
		if found := aliveLine.FindStringSubmatch(line); found != nil {
			m.alive = append(m.alive, found[1])
		}
		if found := bindingLine.FindStringSubmatch(line); found != nil {
			m.bindings[found[2]+" to "+found[1]] = true
		}
	}
	return m, lines.Err()
}
