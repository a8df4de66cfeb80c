package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// view is a list of data that is not stored: rows for a table, records for JSON and YAML, in one
// order.
type view struct {
	rows    [][]string
	records any
}

// viewKind describes how a view is made.
type viewKind struct {
	// rows lists the nodes' reports on a service, or on all services.
	rows func(status *apiv1.StatusResponse, service string) view
	// byMux is rows with --by mux. nil means that the view has no such form.
	byMux func(status *apiv1.StatusResponse, service string) view
	// places means that the status must include the placement of the VIPs.
	places bool
	// snat means that the status must include the leases of ports for outbound connections.
	snat bool
	// load means that the status must include the load of backends.
	load bool
}

// status reads the nodes' reports, in order of node name.
func (c *client) status(ctx context.Context, node string) (*apiv1.StatusResponse, error) {
	return c.ask(ctx, connect.NewRequest(&apiv1.StatusRequest{Node: node}))
}

// ask requests a status. Its nodes are ordered by name.
func (c *client) ask(ctx context.Context, request *connect.Request[apiv1.StatusRequest]) (*apiv1.StatusResponse, error) {
	response, err := c.Status(ctx, request)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(response.Msg.GetNodes(), func(a, b *apiv1.NodeStatus) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return response.Msg, nil
}

// getView prints a view of one service, or of all services if service is empty.
func (c *client) getView(ctx context.Context, g *globals, w io.Writer, kind viewKind, service string) error {
	if service != "" {
		if _, err := c.fetch(ctx, "Service", service); err != nil {
			return err
		}
	}
	request := &apiv1.StatusRequest{}
	if kind.places {
		request.Service = cmp.Or(service, everyService)
	}
	if kind.snat {
		request.SnatOf = cmp.Or(service, everyService)
	}
	if kind.load {
		request.LoadOf, request.Shares = cmp.Or(service, everyService), true
	}
	status, err := c.ask(ctx, connect.NewRequest(request))
	if err != nil {
		return err
	}
	v := kind.rows(status, service)
	if g.format != formatTable {
		return g.format.encode(w, v.records)
	}
	return table(w, v.rows)
}

// memberReport is a member as one node reported it.
type memberReport struct {
	node *apiv1.NodeStatus
	*apiv1.MemberStatus
}

// reports returns the muxes' reports of all members of a service (of all services if it is empty),
// in natural order. Hosts report members as well, but check none.
func reports(status *apiv1.StatusResponse, service string) []memberReport {
	var muxes []*apiv1.NodeStatus
	for _, n := range status.GetNodes() {
		if n.GetRole() == string(lb.RoleMux) {
			muxes = append(muxes, n)
		}
	}
	return membersOf(muxes, service)
}

// membersOf returns the members that nodes report, of a service or of all services, in natural
// order.
func membersOf(nodes []*apiv1.NodeStatus, service string) []memberReport {
	var out []memberReport
	for _, n := range nodes {
		for _, m := range n.GetMembers() {
			if service == "" || m.GetService() == service {
				out = append(out, memberReport{n, m})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b memberReport) int {
		return cmp.Or(
			cmp.Compare(a.GetService(), b.GetService()), cmp.Compare(a.GetVip(), b.GetVip()),
			cmp.Compare(a.GetProtocol(), b.GetProtocol()), cmp.Compare(a.GetPort(), b.GetPort()), cmp.Compare(a.GetPortEnd(), b.GetPortEnd()),
			cmp.Compare(a.GetMember(), b.GetMember()), cmp.Compare(a.node.GetName(), b.node.GetName()),
		)
	})
	return out
}

// endpointKey is an endpoint's natural key as text.
type endpointKey struct {
	Service  string `json:"service"`
	VIP      string `json:"vip"`
	Protocol string `json:"protocol"`
	Port     uint32 `json:"port"`
	// PortEnd is the last port of a range.
	PortEnd uint32 `json:"portEnd,omitempty"`
}

func keyOf(m *apiv1.MemberStatus) endpointKey {
	return endpointKey{m.GetService(), m.GetVip(), m.GetProtocol(), m.GetPort(), m.GetPortEnd()}
}

// memberKey identifies a member among those of all endpoints.
func memberKey(m *apiv1.MemberStatus) string {
	return backendKey(keyOf(m), m.GetDip(), m.GetDipPort())
}

// backendKey returns the memberKey of a backend.
func backendKey(endpoint endpointKey, dip string, port uint32) string {
	return fmt.Sprintf("%v %v %s %d", endpoint.Service, endpoint, dip, port)
}

// backendRecord is a row of the backend view.
type backendRecord struct {
	endpointKey
	DIP     string `json:"dip"`
	DIPPort uint32 `json:"dipPort"`
	Member  uint32 `json:"member"`
	Mux     string `json:"mux"`
	Health  string `json:"health"`
	// Weight is the effective weight: less than configured during slow start, 0 while the member
	// drains.
	Weight float64 `json:"weight"`
	// State is the manager's decision: draining, growing, down, backup. It is empty for a member in
	// normal service.
	State string `json:"state"`
	// Flows counts the entries of the mux's flow table.
	Flows     uint64 `json:"flows"`
	LastCheck string `json:"lastCheck"`
	Packets   uint64 `json:"packets"`
	Bytes     uint64 `json:"bytes"`
}

// backendView has one row per member and mux.
func backendView(status *apiv1.StatusResponse, service string) view {
	records := []backendRecord{}
	rows := [][]string{{"SERVICE", "ENDPOINT", "BACKEND", "MEMBER", "MUX", "HEALTH", "WEIGHT", "FLOWS", "STATE", "PACKETS", "BYTES", "LAST-CHECK"}}
	decided := decisionsOf(status)
	for _, m := range reports(status, service) {
		r := backendRecord{
			endpointKey: keyOf(m.MemberStatus), DIP: m.GetDip(), DIPPort: m.GetDipPort(), Member: m.GetMember(), Mux: m.node.GetName(),
			Health: decided.health(m), Weight: decided.weight(m.MemberStatus), State: decided.of(m.MemberStatus).words(), Flows: m.GetFlows(),
			LastCheck: m.GetLastCheck(), Packets: m.GetPackets(), Bytes: m.GetBytes(),
		}
		records = append(records, r)
		rows = append(rows, []string{
			r.Service, r.endpointKey.String(), backendText(r.DIP, r.DIPPort), fmt.Sprint(r.Member), r.Mux, r.Health, fmt.Sprint(r.Weight),
			fmt.Sprint(r.Flows), r.State, fmt.Sprint(r.Packets), fmt.Sprint(r.Bytes), r.LastCheck,
		})
	}
	return view{rows, records}
}

// String returns "tcp/203.0.113.10:80" without the service.
func (k endpointKey) String() string {
	return k.Protocol + "/" + net.JoinHostPort(k.VIP, lb.PortsText(uint16(k.Port), uint16(k.PortEnd)))
}

// healthWord returns a mux's health of a member. It is unknown if the mux is disconnected, and
// empty for hosts.
func healthWord(m memberReport) string {
	switch {
	case m.node.GetRole() == string(lb.RoleHost):
		return ""
	case !m.node.GetConnected(), m.GetUnknown():
		return "unknown"
	case m.GetAlive():
		return "up"
	}
	return "down"
}

// noAgentWord is the health of a backend without a host agent, whatever its checks result in.
const noAgentWord = "no-agent"

// health returns healthWord, or noAgentWord instead of up for a member without a host agent.
func (d decisions) health(m memberReport) string {
	word := healthWord(m)
	if word == "up" && !d.served(m.MemberStatus) {
		return noAgentWord
	}
	return word
}

// liveFlows returns the member's flows at a connected mux.
func liveFlows(m memberReport) uint64 {
	if m.node.GetConnected() {
		return m.GetFlows()
	}
	return 0
}

func hostPort(host string, port uint32) string {
	return net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10))
}

// endpointRecord is a row of the endpoint view.
type endpointRecord struct {
	endpointKey
	Members int `json:"members"`
	// Healthy members are up at every connected mux.
	Healthy int `json:"healthy"`
	// Muxes is the number of muxes that report the endpoint. Advertised is the number of those
	// whose speaker advertises the VIP.
	Muxes      int    `json:"muxes"`
	Advertised int    `json:"advertised"`
	Flows      uint64 `json:"flows"`
	Packets    uint64 `json:"packets"`
	Bytes      uint64 `json:"bytes"`
}

// endpointView has one row per endpoint.
func endpointView(status *apiv1.StatusResponse, service string) view {
	records := []endpointRecord{}
	rows := [][]string{{"SERVICE", "ENDPOINT", "MEMBERS", "HEALTHY", "ADVERTISED", "FLOWS", "PACKETS", "BYTES"}}
	all, decided := reports(status, service), decisionsOf(status)
	for len(all) > 0 {
		end := slices.IndexFunc(all, func(m memberReport) bool { return keyOf(m.MemberStatus) != keyOf(all[0].MemberStatus) })
		if end < 0 {
			end = len(all)
		}
		r := summarize(all[:end], decided)
		all = all[end:]
		records = append(records, r)
		rows = append(rows, []string{
			r.Service, r.endpointKey.String(), fmt.Sprint(r.Members), fmt.Sprintf("%d/%d", r.Healthy, r.Members),
			fmt.Sprintf("%d/%d", r.Advertised, r.Muxes), fmt.Sprint(r.Flows), fmt.Sprint(r.Packets), fmt.Sprint(r.Bytes),
		})
	}
	return view{rows, records}
}

// summarize aggregates the members of one endpoint, at least one.
func summarize(members []memberReport, decided decisions) endpointRecord {
	r := endpointRecord{endpointKey: keyOf(members[0].MemberStatus)}
	muxes, ids, down, up := map[string]bool{}, map[uint32]bool{}, map[uint32]bool{}, map[uint32]bool{}
	for _, m := range members {
		r.Flows += liveFlows(m)
		r.Packets += m.GetPackets()
		r.Bytes += m.GetBytes()
		if !muxes[m.node.GetName()] {
			muxes[m.node.GetName()] = true
			if advertises(m.node, r.VIP) {
				r.Advertised++
			}
		}
		ids[m.GetMember()] = true
		switch decided.health(m) {
		case "up":
			up[m.GetMember()] = true
		case "down":
			down[m.GetMember()] = true
		}
	}
	r.Muxes, r.Members = len(muxes), len(ids)
	for id := range up {
		if !down[id] {
			r.Healthy++
		}
	}
	return r
}
