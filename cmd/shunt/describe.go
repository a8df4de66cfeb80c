package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

func newDescribe(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "describe KIND NAME | backend DIP[:PORT] [SERVICE]",
		Short: "Tell everything about one object, and what the nodes report of it",
		Long:  "Describe tells an object in words: of a service its endpoints, their members with ids, health by mux and routes,\nand the ports of its servers' outbound connections;\nof a node what it obeys, its BGP peers, routes and counted reasons; of a tenant what of its quotas is taken, of a\npolicy who names it; and the last ten events of each. Of a\nbackend it tells, for each endpoint, what every node that checks it found: state and last results of each check, with time,\nduration and words, and what became of its health within the last week, by whose word. With -o json or yaml it prints the object and the reports as\nrecords.",
		Example: "  shunt describe service web\n" +
			"  shunt describe node mux1\n" +
			"  shunt describe tenant shop\n" +
			"  shunt describe backend 10.20.1.11:8080 web",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 3 && isBackendKind(args[0]) {
				return nil
			}
			return needs("KIND", "NAME")(cmd, args)
		},
		ValidArgsFunction: g.completeNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if isBackendKind(args[0]) {
				backend, err := parseBackend(args[1])
				if err != nil {
					return err
				}
				request := &apiv1.HealthOfRequest{Dip: backend.DIP.String(), Port: uint32(backend.Port), Service: strings.Join(args[2:], "")}
				return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
					return c.describeBackend(ctx, g, cmd.OutOrStdout(), request)
				})
			}
			kind, err := parseKind(args[0])
			if err != nil {
				return err
			}
			return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				return c.describe(ctx, g, cmd.OutOrStdout(), kind, args[1])
			})
		},
	}
}

func (c *client) describe(ctx context.Context, g *globals, w io.Writer, kind lb.Kind, name string) error {
	objects, err := c.fetch(ctx, kind, name)
	if err != nil {
		return err
	}
	status, err := c.describeStatus(ctx, kind, name)
	if err != nil {
		return err
	}
	events, err := c.lastEvents(ctx, kind, name)
	if err != nil {
		return err
	}
	if g.format != formatTable {
		return describeRecords(g, w, kind, objects[0], status, events)
	}
	object, err := domainObject(objects[0])
	if err != nil {
		return err
	}
	d := &description{w: w, stored: objects[0], status: status, now: g.now()}
	if service, ok := object.(*lb.Service); ok {
		if d.keys, err = c.keysOf(ctx, service); err != nil {
			return err
		}
	}
	if d.related, err = c.related(ctx, kind, objects); err != nil {
		return err
	}
	switch o := object.(type) {
	case *lb.Service:
		d.service(o)
	case *lb.Node:
		d.node(o)
	case *lb.Network:
		d.network(o)
	case *lb.Tenant:
		d.tenant(o)
	case *lb.Policy:
		d.policy(o)
	}
	d.owners()
	d.events(events)
	return d.err
}

// describeRecords prints the object, its reported status and its events.
func describeRecords(g *globals, w io.Writer, kind lb.Kind, o *apiv1.Object, status *apiv1.StatusResponse, events []*apiv1.Event) error {
	text, err := rawJSON(o)
	if err != nil {
		return err
	}
	happened, err := rawJSONs(events)
	if err != nil {
		return err
	}
	out := map[string]any{"object": text, "events": happened}
	switch kind {
	case lb.KindService:
		out["backends"] = backendView(status, objectName(o)).records
		out["endpoints"] = endpointView(status, objectName(o)).records
		placements := []any{}
		for _, p := range status.GetPlacements() {
			text, err := rawJSON(p)
			if err != nil {
				return err
			}
			placements = append(placements, text)
		}
		out["placements"], out["warnings"] = placements, append([]string{}, status.GetWarnings()...)
		vips := []any{}
		for _, v := range status.GetSnatVips() {
			text, err := rawJSON(v)
			if err != nil {
				return err
			}
			vips = append(vips, text)
		}
		out["snat"], out["snatVips"] = snatView(status, objectName(o)).records, vips
	case lb.KindNode:
		if n := nodeStatus(status, objectName(o)); n != nil {
			if out["status"], err = rawJSON(n); err != nil {
				return err
			}
		}
	}
	return g.format.encode(w, out)
}

// description writes an object as text. It keeps the writer's first error.
type description struct {
	w       io.Writer
	stored  *apiv1.Object
	status  *apiv1.StatusResponse
	related related
	keys    []*apiv1.KeySet
	now     time.Time
	err     error

	// decided and members, by memberKey, come from the status of a service.
	decided decisions
	members map[string][]memberReport
}

func (d *description) printf(format string, args ...any) {
	if d.err == nil {
		_, d.err = fmt.Fprintf(d.w, format, args...)
	}
}

// field writes a name and its value, aligned.
func (d *description) field(name, value string) {
	if value == "" {
		value = "-"
	}
	d.printf("%-15s %s\n", name+":", value)
}

// table writes rows, indented. It writes nothing if there is only the heading.
func (d *description) table(rows [][]string) {
	if d.err != nil || len(rows) < 2 {
		return
	}
	for i := range rows {
		rows[i][0] = "  " + rows[i][0]
	}
	d.err = table(d.w, rows)
}

func (d *description) stamp() {
	d.field("Revision", fmt.Sprintf("%d, generation %d", d.stored.GetRevision(), d.stored.GetGeneration()))
}

func (d *description) service(s *lb.Service) {
	d.field("Service", s.Name)
	d.field("Tenant", s.Tenant)
	d.field("VIPs", strings.ReplaceAll(commas(s.VIPs), ",", ", "))
	d.shared(s)
	d.stamp()
	for _, text := range d.status.GetWarnings() {
		d.field("Warning", text)
	}
	d.placements()
	d.decided, d.members = decisionsOf(d.status), map[string][]memberReport{}
	for _, m := range reports(d.status, s.Name) {
		key := memberKey(m.MemberStatus)
		d.members[key] = append(d.members[key], m)
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		for _, vip := range s.VIPs {
			d.endpoint(s.Name, e, lb.EndpointKey{VIP: vip, Protocol: e.Protocol, Port: e.Port, PortEnd: e.PortEnd})
		}
	}
	d.snat(s)
}

// endpoint writes the members of one endpoint as the muxes report them.
func (d *description) endpoint(service string, e *lb.Endpoint, key lb.EndpointKey) {
	name := endpointKey{service, key.VIP.String(), key.Protocol.String(), uint32(key.Port), uint32(key.PortEnd)}
	d.printf("\nEndpoint %s\n", name)
	d.printf("  path %s, affinity %s, scheduler %s, rewrite %s\n", e.Path, affinityText(e), schedulerText(e), rewriteText(e))
	d.keysOf(service, e, key)
	d.options(e)
	d.health(&e.Health)
	rows := [][]string{{"MEMBER", "BACKEND", "HOST", "WEIGHT", "STATE", "FLOWS", "PACKETS", "HEALTH"}}
	for i := range e.Backends {
		b := &e.Backends[i]
		if dip, ok := b.DIP(key.VIP); ok {
			rows = append(rows, d.member(name, b, lb.BackendKey{DIP: dip, Port: b.Port}))
		}
	}
	d.table(rows)
	d.printf("  route: %s\n", d.route(name.VIP))
}

// rewriteText returns the node that rewrites VIP:port to DIP:port.
func rewriteText(e *lb.Endpoint) string {
	if e.Translated() {
		return "mux"
	}
	return string(e.Rewrite)
}

// hostText returns the backend's host, or "" if none is set.
func hostText(b *lb.Backend) string {
	if !b.Host.IsValid() {
		return ""
	}
	return b.Host.String()
}

// member returns one backend's row: its counters, the nodes that report it up, the nodes that
// report it down, and why.
func (d *description) member(name endpointKey, b *lb.Backend, key lb.BackendKey) []string {
	id, packets, flows, state := "", uint64(0), uint64(0), ""
	weight := fmt.Sprint(b.Weight)
	var words []string
	for _, m := range d.members[backendKey(name, key.DIP.String(), uint32(key.Port))] {
		id, state = fmt.Sprint(m.GetMember()), d.decided.of(m.MemberStatus).words()
		packets += m.GetPackets()
		flows += liveFlows(m)
		word := d.decided.health(m) + " at " + m.node.GetName()
		if m.GetLastCheck() != "" && m.node.GetConnected() {
			word += " (" + m.GetLastCheck() + ")"
		}
		words = append(words, word)
		if now := d.decided.weight(m.MemberStatus); now > 0 && now < float64(b.Weight) {
			weight = fmt.Sprintf("%v of %d", now, b.Weight)
		}
	}
	if len(words) == 0 {
		words = []string{"no mux reports it"}
	}
	switch {
	case state != "":
	case (b.Drain || b.Weight == 0) && id == "":
		state = "drained"
	case b.Drain:
		state = "draining"
	case b.Backup:
		state = "backup"
	}
	return []string{
		id, backendText(key.DIP.String(), uint32(key.Port)), hostText(b), weight, state, fmt.Sprint(flows), fmt.Sprint(packets),
		strings.Join(words, "; "),
	}
}

// route returns the muxes that advertise a VIP, and those that should but do not.
func (d *description) route(vip string) string {
	place := d.place(vip)
	var by, not []string
	for _, n := range d.status.GetNodes() {
		switch {
		case n.GetRole() != string(lb.RoleMux):
		case advertises(n, vip):
			name := n.GetName()
			if slices.Contains(place.GetLeaving(), name) {
				name += " (leaving)"
			}
			by = append(by, name)
		case place.GetReplicas() == 0 || place.GetEvery() || slices.Contains(place.GetMuxes(), n.GetName()):
			not = append(not, n.GetName())
		}
	}
	switch {
	case len(by) == 0 && place != nil && len(place.GetMuxes())+len(place.GetLeaving()) == 0 && !place.GetEvery():
		return "advertised by no mux: it is placed on none"
	case len(by) == 0:
		return "advertised by no mux"
	case len(not) == 0:
		return "advertised by " + strings.Join(by, ", ")
	}
	return "advertised by " + strings.Join(by, ", ") + "; not by " + strings.Join(not, ", ")
}

func (d *description) network(n *lb.Network) {
	d.field("Network", n.Name)
	d.field("VIPs", strings.ReplaceAll(commas(n.VIPs), ",", ", "))
	d.field("Underlay", strings.ReplaceAll(commas(n.Underlay), ",", ", "))
	d.field("MTU", fmt.Sprint(n.MTU))
	d.field("Tunnel sources", strings.ReplaceAll(commas(n.TunnelSources), ",", ", "))
	d.field("Tunnel", n.Encap)
	d.stamp()
}
