package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// healthPace is the poll interval of `get health --watch`, because nodes report once a second.
const healthPace = time.Second

// isHealth reports whether a KIND of the command line means health.
func isHealth(kind string) bool { return strings.ToLower(kind) == "health" }

// healthRecord is a row of the health view: one backend of one endpoint.
type healthRecord struct {
	endpointKey
	DIP     string `json:"dip"`
	DIPPort uint32 `json:"dipPort"`
	Member  uint32 `json:"member"`
	// Verdict is the cluster's verdict: healthy, unhealthy, unknown, damped, held, mixed when muxes
	// differ, or no-agent when the backend is healthy but no host agent receives its packets.
	Verdict string `json:"verdict"`
	// Since is the time at which the last node reached this verdict. It is empty if no node has
	// one.
	Since string `json:"since"`
	// Nodes lists each node's verdict, muxes before hosts.
	Nodes []healthOpinion `json:"nodes"`
	// LastCheck is the last check result of a node with this verdict. When nodes differ, it is that
	// of a node that reports a failure.
	LastCheck string `json:"lastCheck"`
	// Checks describes the checks of the backend.
	Checks []string `json:"checks"`
}

// healthOpinion is one node's report of a backend.
type healthOpinion struct {
	Node      string `json:"node"`
	Role      string `json:"role"`
	Verdict   string `json:"verdict"`
	Since     string `json:"since"`
	LastCheck string `json:"lastCheck"`
}

// healthRecords returns the backends of a service, or of all services, as connected nodes report
// them.
func healthRecords(status *apiv1.StatusResponse, checks map[string][]string) []healthRecord {
	out := []healthRecord{}
	all, decided := membersOf(status.GetNodes(), ""), decisionsOf(status)
	for len(all) > 0 {
		end := slices.IndexFunc(all, func(m memberReport) bool { return memberKey(m.MemberStatus) != memberKey(all[0].MemberStatus) })
		if end < 0 {
			end = len(all)
		}
		out = append(out, healthOf(all[:end], checks, decided.of(all[0].MemberStatus)))
		all = all[end:]
	}
	return out
}

// healthOf aggregates the nodes' reports of one backend, at least one.
func healthOf(reports []memberReport, checks map[string][]string, decided decision) healthRecord {
	m := reports[0].MemberStatus
	r := healthRecord{
		endpointKey: keyOf(m), DIP: m.GetDip(), DIPPort: m.GetDipPort(), Member: m.GetMember(), Nodes: []healthOpinion{},
	}
	r.Checks = append([]string{}, checks[checksKey(r.Service, r.Protocol, r.Port)]...)
	for _, report := range reports {
		word := convert.VerdictWord(lb.Role(report.node.GetRole()), report.MemberStatus)
		if word == "" || !report.node.GetConnected() {
			continue
		}
		r.Nodes = append(r.Nodes, healthOpinion{
			Node: report.node.GetName(), Role: report.node.GetRole(), Verdict: word, Since: stampText(report.GetSince()), LastCheck: report.GetLastCheck(),
		})
	}
	// Muxes before hosts.
	slices.SortStableFunc(r.Nodes, func(a, b healthOpinion) int { return -cmp.Compare(a.Role, b.Role) })
	r.Verdict = verdictOf(r.Nodes)
	r.explain()
	if decided.GetNoAgent() != "" && (r.Verdict == convert.Healthy || r.Verdict == convert.Mixed) {
		r.Verdict, r.LastCheck = noAgentWord, decided.GetNoAgent()
	}
	return r
}

// verdictOf combines the nodes' reports. Muxes decide. Hosts decide when every mux reports unknown.
func verdictOf(opinions []healthOpinion) string {
	for _, role := range []lb.Role{lb.RoleMux, lb.RoleHost} {
		said := map[string]bool{}
		for _, o := range opinions {
			if o.Role == string(role) && o.Verdict != convert.Unknown {
				said[o.Verdict] = true
			}
		}
		if len(said) > 1 {
			delete(said, convert.Held) // the others have newer results
		}
		switch {
		case len(said) == 0:
		case said[convert.Healthy] && len(said) > 1:
			return convert.Mixed
		case len(said) > 1:
			return convert.Damped
		default:
			return slices.Collect(maps.Keys(said))[0]
		}
	}
	return convert.Unknown
}

// explain sets Since and LastCheck. If the backend's host has the same verdict, its check result is
// the reason, because muxes only report that they follow the host.
func (r *healthRecord) explain() {
	for _, o := range r.Nodes {
		if o.Role == string(lb.RoleHost) && o.Verdict == r.Verdict && o.Verdict != convert.Unknown && o.LastCheck != "" {
			r.LastCheck = o.Node + ": " + o.LastCheck
			break
		}
	}
	for _, o := range r.Nodes {
		if o.Verdict == r.Verdict || r.Verdict == convert.Mixed {
			r.Since = max(r.Since, o.Since) // of one zone and width
		}
		if r.LastCheck == "" && (o.Verdict == r.Verdict || r.Verdict == convert.Mixed && o.Verdict != convert.Healthy && o.Verdict != convert.Unknown) {
			r.LastCheck = o.LastCheck
		}
	}
}

// by returns which nodes have which verdict. It returns the names alone if all agree.
func (r *healthRecord) by() string {
	var words []string
	names := map[string][]string{}
	for _, o := range r.Nodes {
		if names[o.Verdict] == nil {
			words = append(words, o.Verdict)
		}
		names[o.Verdict] = append(names[o.Verdict], o.Node)
	}
	if len(words) == 1 {
		return strings.Join(names[words[0]], ",")
	}
	for i, word := range words {
		words[i] = strings.Join(names[word], ",") + " " + word
	}
	return strings.Join(words, "; ")
}

func (r *healthRecord) row() []string {
	return []string{
		r.Service, r.endpointKey.String(), backendText(r.DIP, r.DIPPort), r.Verdict, r.Since, r.by(), r.LastCheck, strings.Join(r.Checks, ", "),
	}
}

var healthHeading = []string{"SERVICE", "ENDPOINT", "BACKEND", "VERDICT", "SINCE", "BY", "LAST-CHECK", "CHECKS"}

// stampText returns a time as printed in tables, or "" if t is nil.
func stampText(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339)
}

// health reads the backends of a service, or of all services if it is empty.
func (c *client) health(ctx context.Context, service string) ([]healthRecord, error) {
	objects, err := c.fetch(ctx, lb.KindService, service)
	if err != nil {
		return nil, err
	}
	checks := map[string][]string{}
	for _, o := range objects {
		object, err := domainObject(o)
		if err != nil {
			return nil, err
		}
		s := object.(*lb.Service)
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			for j := range e.Health.Checks {
				key := checksKey(s.Name, e.Protocol.String(), uint32(e.Port))
				checks[key] = append(checks[key], askedText(&e.Health.Checks[j]))
			}
		}
	}
	status, err := c.ask(ctx, connect.NewRequest(&apiv1.StatusRequest{MembersOf: cmp.Or(service, everyService)}))
	if err != nil {
		return nil, err
	}
	return healthRecords(status, checks), nil
}

// checksKey identifies an endpoint of a service.
func checksKey(service, protocol string, port uint32) string {
	return fmt.Sprintf("%s %s %d", service, protocol, port)
}

// getHealth prints the health of the backends of a service, or of all services.
func (g *globals) getHealth(ctx context.Context, w io.Writer, service string, watch bool) error {
	if watch {
		return g.watchHealth(ctx, w, service)
	}
	return g.call(ctx, func(ctx context.Context, c *client) error {
		records, err := c.health(ctx, service)
		if err != nil {
			return err
		}
		if g.format != formatTable {
			return g.format.encode(w, records)
		}
		rows := [][]string{healthHeading}
		for i := range records {
			rows = append(rows, records[i].row())
		}
		return table(w, rows)
	})
}

// watchHealth prints the health of backends and then its changes until ctx ends. It survives the
// loss of managers: see follow.
func (g *globals) watchHealth(ctx context.Context, w io.Writer, service string) error {
	c, err := g.connect()
	if err != nil {
		return err
	}
	p := healthPrinter{w: w, format: g.format, told: map[string]*healthRecord{}}
	return c.follow(ctx, g.note, func(begun func()) error {
		for first := true; ; first = false {
			records, err := c.health(ctx, service)
			if err != nil {
				return err
			}
			if first {
				begun()
			}
			if err := p.print(records); err != nil {
				return err
			}
			select {
			case <-time.After(healthPace):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
}

// healthPrinter prints changes of verdicts one by one: table rows after one heading, YAML
// documents, or one JSON object a line.
type healthPrinter struct {
	w       io.Writer
	format  format
	started bool
	// told holds the printed backends that still exist.
	told map[string]*healthRecord
}

// healthChange is a change in JSON and YAML output.
type healthChange struct {
	Event string `json:"event"` // upserted or deleted
	*healthRecord
}

// print prints the differences from the last call.
func (p *healthPrinter) print(records []healthRecord) error {
	if !p.started && p.format == formatTable {
		if err := p.row("EVENT", healthHeading[:7]); err != nil {
			return err
		}
	}
	p.started = true
	gone := maps.Clone(p.told)
	for i := range records {
		r := &records[i]
		key := backendKey(r.endpointKey, r.DIP, r.DIPPort)
		delete(gone, key)
		if old := p.told[key]; old != nil && old.Verdict == r.Verdict && old.by() == r.by() {
			continue
		}
		p.told[key] = r
		if err := p.change("upserted", r); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(gone)) {
		delete(p.told, key)
		if err := p.change("deleted", gone[key]); err != nil {
			return err
		}
	}
	return nil
}

func (p *healthPrinter) change(event string, r *healthRecord) error {
	switch p.format {
	case formatYAML:
		if _, err := fmt.Fprintln(p.w, "---"); err != nil {
			return err
		}
		return p.format.encode(p.w, healthChange{event, r})
	case formatJSON:
		text, err := json.Marshal(healthChange{event, r})
		if err != nil {
			return fmt.Errorf("encode output: %w", err)
		}
		_, err = fmt.Fprintf(p.w, "%s\n", text)
		return err
	}
	return p.row(event, r.row()[:7])
}

// row has fixed columns, because later rows cannot widen printed ones.
func (p *healthPrinter) row(event string, cells []string) error {
	_, err := fmt.Fprintf(p.w, "%-8s  %-20s  %-9s  %-16s  %-28s  %-22s  %-24s  %s\n",
		event, cmp.Or(cells[4], "-"), cells[3], cells[0], cells[1], cells[2], cmp.Or(cells[5], "-"), cells[6])
	return err
}
