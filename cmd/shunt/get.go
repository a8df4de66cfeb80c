package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// viewKinds are read-only views of the nodes' reports.
var viewKinds = map[string]viewKind{
	"backend": {rows: backendsView, byMux: backendView}, "backends": {rows: backendsView, byMux: backendView},
	"endpoint": {rows: endpointView}, "endpoints": {rows: endpointView},
	"placement": {rows: placeView, places: true}, "placements": {rows: placeView, places: true},
	"snat": {rows: snatView, snat: true},
	"load": {rows: loadView, load: true}, "loads": {rows: loadView, load: true},
}

func newGet(g *globals) *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:   "get KIND [NAME]",
		Short: "List objects, what the nodes report of backends, endpoints and flows, or where VIPs are",
		Long: "Get lists services, nodes, networks, tenants or policies. With -o yaml these can be applied again.\n\n" +
			"The kinds backend and endpoint are views of what the muxes reported: health and packets of each; NAME is then\n" +
			"a service. Backends have a row each, with the muxes that differ; with --by mux they have one for each VIP and mux, which\n" +
			"-o json and -o yaml always have.\n\n" +
			"The kind placement tells which muxes each VIP is on, has yet to leave, and why there are fewer than it asks for; NAME is\n" +
			"a service.\n\n" +
			"The kind snat tells which ports of VIPs each server has for outbound connections; NAME is a service. With --audit every\n" +
			"mux and host is asked for its table of them, and where one differs from what is stored the command fails.\n\n" +
			"The kind load tells how loaded each backend is, as its host counts and its application says; NAME is a service. With --watch it\n" +
			"prints what changed, once a second.\n\n" +
			"The kind health tells what the cluster makes of each backend: healthy, unhealthy, unknown, damped (it flapped), held (its\n" +
			"muxes suspect themselves and keep an earlier verdict) or mixed (muxes differ), by which nodes, since when and why; NAME is\n" +
			"a service. shunt describe backend has the results of its checks.\n\n" +
			"The kind keys tells which keys of cookies (by VIP) and of QUIC connection ids (by service) there are, how old, and how far rotations\n" +
			"are; with two epochs the one with * is in use. NAME is a VIP or a service. It never shows a key.\n\n" +
			"The kind quic tells what the servers of a service make QUIC connection ids with; NAME is a service. With --backend and -o json\n" +
			"it prints the file that package quiclb reads, with the key: only admins and the service's tenant may. docs/ops/keys.md tells more.\n\n" +
			"The kind flows asks the muxes what they remember of an endpoint's flows: backend, class and age of each; NAME is\n" +
			"then VIP or VIP:PORT. The flow table holds no client addresses; shunt trace tells where a client's packets go.\n\n" +
			"The kind events tells what happened within the last week, oldest first; NAME is then KIND or KIND/NAME of objects,\n" +
			"or manager. docs/ops/events.md explains the reasons.",
		Example: "  shunt get services\n" +
			"  shunt get service web -o yaml\n" +
			"  shunt get nodes --watch\n" +
			"  shunt get backends web\n" +
			"  shunt get backends web --by mux\n" +
			"  shunt get health web --watch\n" +
			"  shunt get load web --watch\n" +
			"  shunt get placements\n" +
			"  shunt get snat --audit\n" +
			"  shunt get keys\n" +
			"  (umask 077; shunt get quic web --backend 10.20.1.11 -o json > /etc/quic/cid.json)\n" +
			"  shunt get flows 203.0.113.10:80 --node mux1 --limit 20\n" +
			"  shunt get events services/web --since 1h --watch",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usagef("needs KIND and at most one NAME; KIND is %s, backend, endpoint, placement, snat, load, health, keys, quic, flows or events", kindWords)
			}
			return nil
		},
		ValidArgsFunction: g.completeNames("backends", "endpoints", "placements", "snat", "load", "health", "keys", "quic", "flows", "events"),
		RunE:              func(cmd *cobra.Command, args []string) error { return g.get(cmd, args, &f) },
	}
	cmd.Flags().BoolVarP(&f.watch, "watch", "w", false, "go on with every change until interrupted, also when a manager is lost")
	cmd.Flags().BoolVar(&f.audit, "audit", false, "of snat: compare the tables of all muxes and hosts with what is stored")
	cmd.Flags().DurationVar(&f.since, "since", 0, "only events of this last time, such as 1h; 0: of a week")
	cmd.Flags().StringVar(&f.by, "by", "", "of backends: mux, a row for each VIP and mux")
	f.flows.register(cmd.Flags())
	f.quic.register(cmd.Flags())
	return cmd
}

// getFlags holds the flags of get, each valid for some kinds.
type getFlags struct {
	watch bool
	audit bool
	by    string
	since time.Duration
	flows flowsFlags
	quic  quicFlags
}

// get prints the objects or the view that the arguments name. It refuses flags that the kind does
// not take.
func (g *globals) get(cmd *cobra.Command, args []string, f *getFlags) error {
	word, name := strings.ToLower(args[0]), strings.Join(args[1:], "")
	if f.quic.given() && word != "quic" {
		return usagef("--backend, --vip and --port: must be used with quic")
	}
	if isEvents(args[0]) {
		if f.by != "" {
			return usagef("--by: must be used with backends")
		}
		if f.audit {
			return usagef("--audit: must be used with snat")
		}
		return g.getEvents(cmd, name, f)
	}
	if f.since != 0 {
		return usagef("--since: must be used with events")
	}
	view, isView := viewKinds[word]
	switch {
	case f.by == "":
	case view.byMux == nil:
		return usagef("--by: must be used with backends")
	case f.by != byMux:
		return usagef("--by: %q: must be %s", f.by, byMux)
	default:
		view.rows = view.byMux
	}
	isFlows := word == "flows" || word == "flow"
	switch {
	case f.audit && !view.snat:
		return usagef("--audit: must be used with snat")
	case f.audit && f.watch:
		return usagef("--audit: must not come with --watch")
	case f.audit:
		return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
			return c.auditSNAT(ctx, g, cmd.OutOrStdout(), name)
		})
	case !isFlows && f.flows.given():
		return usagef("--node, --protocol and --limit: must be used with flows")
	case (word == "keys" || word == "key" || word == "quic") && f.watch:
		return usagef("--watch: must be used with %s, or with load, health or events", kindChoice)
	case word == "keys", word == "key":
		return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
			return c.getKeys(ctx, g, cmd.OutOrStdout(), name)
		})
	case word == "quic":
		if err := f.quic.check(name); err != nil {
			return err
		}
		return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
			return c.getQUIC(ctx, g, cmd.OutOrStdout(), name, &f.quic)
		})
	case isHealth(word):
		return g.getHealth(cmd.Context(), cmd.OutOrStdout(), name, f.watch)
	case isLoad(word) && f.watch:
		return g.watchLoad(cmd.Context(), cmd.OutOrStdout(), name)
	case (isFlows || isView) && f.watch:
		return usagef("--watch: must be used with %s, or with load, health or events", kindChoice)
	case isFlows:
		request, err := f.flows.request(name)
		if err != nil {
			return err
		}
		return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
			return c.getFlows(ctx, g, cmd.OutOrStdout(), request)
		})
	case isView:
		return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
			return c.getView(ctx, g, cmd.OutOrStdout(), view, name)
		})
	}
	return g.getObjects(cmd, args[0], name, f.watch)
}

// getEvents prints events, those of all objects if name is empty. With --watch it follows new
// events.
func (g *globals) getEvents(cmd *cobra.Command, name string, f *getFlags) error {
	request, err := eventsRequest(name, f.since)
	if err != nil {
		return err
	}
	if f.watch {
		return g.followEvents(cmd.Context(), cmd.OutOrStdout(), g.note, request)
	}
	return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
		return c.getEvents(ctx, g, cmd.OutOrStdout(), request)
	})
}

// getObjects prints objects of a kind, all of them if name is empty, and follows them if watch is
// set.
func (g *globals) getObjects(cmd *cobra.Command, word, name string, watch bool) error {
	kind, err := parseKind(word)
	if err != nil {
		words := append(slices.Sorted(maps.Keys(objectKinds)), slices.Sorted(maps.Keys(viewKinds))...)
		return usagef("kind: %q: must be %s, backend, endpoint, placement, snat, load, health, keys, quic, flows or events%s", word, kindWords,
			lb.MeantFor(word, append(words, "health", "keys", "quic", "flows", "events")))
	}
	if watch {
		return g.watch(cmd.Context(), cmd.OutOrStdout(), g.note, kind, name)
	}
	return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
		return c.get(ctx, g, cmd.OutOrStdout(), kind, name)
	})
}

// get prints objects of one kind.
func (c *client) get(ctx context.Context, g *globals, w io.Writer, kind lb.Kind, name string) error {
	objects, err := c.fetch(ctx, kind, name)
	if err != nil {
		return err
	}
	switch {
	case g.format == formatYAML:
		return printYAML(w, objects)
	case g.format == formatJSON && name != "":
		text, err := rawJSON(objects[0])
		if err != nil {
			return err
		}
		return g.format.encode(w, text)
	case g.format == formatJSON:
		texts, err := rawJSONs(objects)
		if err != nil {
			return err
		}
		return g.format.encode(w, texts)
	}
	status, err := c.status(ctx, "")
	if err != nil {
		return err
	}
	var near related
	if kind != lb.KindService {
		if near, err = c.related(ctx, kind, objects); err != nil {
			return err
		}
	}
	rows, err := objectRows(kind, objects, status, near)
	if err != nil {
		return err
	}
	return table(w, rows)
}

// printYAML prints objects in canonical YAML.
func printYAML(w io.Writer, objects []*apiv1.Object) error {
	for i, o := range objects {
		text, err := objectYAML(o)
		if err != nil {
			return err
		}
		if i > 0 {
			text = "---\n" + text
		}
		if _, err := io.WriteString(w, text+ownersComment(o)); err != nil {
			return err
		}
	}
	return nil
}

// objectRows returns the table of the objects of one kind, with the nodes' reports.
func objectRows(kind lb.Kind, objects []*apiv1.Object, status *apiv1.StatusResponse, near related) ([][]string, error) {
	rows, healthy := [][]string{headings[kind]}, healthyMembers(status)
	for _, o := range objects {
		object, err := domainObject(o)
		if err != nil {
			return nil, err
		}
		rows = append(rows, objectRow(object, status, healthy, near))
	}
	return rows, nil
}

// headings holds the table headings of stored objects.
var headings = map[lb.Kind][]string{
	lb.KindService: {"NAME", "TENANT", "VIP", "ENDPOINTS", "HEALTHY"},
	lb.KindNode:    {"NAME", "ROLE", "ZONE", "ADDRESS", "VIPS", "STATE", "SYNCED"},
	lb.KindNetwork: {"NAME", "VIPS", "UNDERLAY", "MTU", "TUNNEL-SOURCES", "ENCAP"},
	lb.KindTenant:  {"NAME", "WEIGHT", "SERVICES", "ENDPOINTS", "BACKENDS", "CHANGES/MIN"},
	lb.KindPolicy:  {"NAME", "TENANT", "PACKETS,FLOWS,PINGS", "ALLOWED,DENIED", "PLACEMENT", "SERVICES"},
}

// objectRow returns an object's row. healthy is the number of healthy members by service.
func objectRow(object lb.Object, status *apiv1.StatusResponse, healthy map[string]int, near related) []string {
	switch o := object.(type) {
	case *lb.Service:
		var endpoints []string
		members := 0
		for _, e := range o.Endpoints {
			endpoints = append(endpoints, fmt.Sprintf("%s/%s", e.ProtocolName(), lb.PortsText(e.Port, e.PortEnd)))
			for _, vip := range o.VIPs {
				for i := range e.Backends {
					if _, ok := e.Backends[i].DIP(vip); ok {
						members++
					}
				}
			}
		}
		return []string{o.Name, o.Tenant, commas(o.VIPs), strings.Join(endpoints, ","), fmt.Sprintf("%d/%d", healthy[o.Name], members)}
	case *lb.Node:
		n := nodeStatus(status, o.Name)
		state, synced := nodeState(o, n)
		return []string{o.Name, string(o.Role), o.Zone, commas(o.Addresses), vipsText(o, n), state, synced}
	case *lb.Network:
		return []string{o.Name, commas(o.VIPs), commas(o.Underlay), fmt.Sprint(o.MTU), commas(o.TunnelSources), o.Encap}
	case *lb.Tenant:
		return tenantRow(o, near)
	case *lb.Policy:
		return policyRow(o, near)
	}
	return nil
}

// neverSeen is the state of a node that has not joined yet, or that no manager has seen for a week.
const neverSeen = "never seen"

// seenBefore reports whether a node has been disconnected since before the manager became leader.
// The manager has no other state of such a node.
func seenBefore(n *apiv1.NodeStatus) bool {
	return !n.GetConnected() && n.GetLastSeen() != nil && n.GetVersion() == "" && n.GetSyncedRevision() == 0
}

// nodeState returns a node's state and the revision that it has applied.
func nodeState(o *lb.Node, status *apiv1.NodeStatus) (state, synced string) {
	switch {
	case status.GetLastSeen() == nil && !status.GetConnected():
		return neverSeen, ""
	case seenBefore(status):
		return "away", ""
	case !status.GetConnected():
		state = "away"
	case status.GetError() != "":
		state = "error"
	case status.GetSuspect():
		state = "suspect"
	case o.Drain, status.GetDrained():
		state = "drained"
	default:
		state = "ready"
	}
	return state, fmt.Sprint(status.GetSyncedRevision())
}

// commas joins items by commas without spaces, to keep the columns of the table.
func commas[T fmt.Stringer](items []T) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = item.String()
	}
	return strings.Join(texts, ",")
}

// nodeStatus returns a node's reported status, or nil if it never reported.
func nodeStatus(status *apiv1.StatusResponse, name string) *apiv1.NodeStatus {
	for _, n := range status.GetNodes() {
		if n.GetName() == name {
			return n
		}
	}
	return nil
}

// healthyMembers counts, by service, the members that at least one connected mux and no connected
// mux otherwise reports healthy. Members without a host agent do not count.
func healthyMembers(status *apiv1.StatusResponse) map[string]int {
	up, down := map[string]string{}, map[string]bool{} // by memberKey; up has the service
	decided := decisionsOf(status)
	for _, n := range status.GetNodes() {
		if n.GetRole() != string(lb.RoleMux) {
			continue
		}
		for _, m := range n.GetMembers() {
			switch decided.health(memberReport{n, m}) {
			case "up":
				up[memberKey(m)] = m.GetService()
			case "down":
				down[memberKey(m)] = true
			}
		}
	}
	count := map[string]int{}
	for key, service := range up {
		if !down[key] {
			count[service]++
		}
	}
	return count
}
