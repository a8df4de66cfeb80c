package lab_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
)

// zones of the muxes: a VIP with two replicas in two zones is on mux2 and one of the others.
var zones = map[string]string{"mux1": "east", "mux2": "west", "mux3": "east"}

// placesLab makes a lab with three managers and three muxes the shared one for the rest of the
// test.
func placesLab(t *testing.T) {
	t.Helper()
	topology := lab.DefaultTopology()
	topology.Name = fmt.Sprintf("place%d", os.Getpid())
	topology.Muxes, topology.Managers = 3, 3
	t.Cleanup(func() {
		if err := lab.Down(context.Background(), topology.Name); err != nil {
			t.Error(err)
		}
	})
	l, err := lab.Up(t.Context(), topology, lab.Options{Binary: program, ManagerFlags: []string{"--replace-after", "15s"}})
	if err != nil {
		t.Fatal(err)
	}
	before := shared
	shared = l
	t.Cleanup(func() { shared = before })
	logsOnFailure(t, l)
	client, err := l.Client()
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := client.Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: "Node"}))
	if err != nil {
		t.Fatal(err)
	}
	var zoned []*apiv1.Object
	for _, o := range nodes.Msg.GetObjects() {
		if n := o.GetNode(); n.GetRole() == "mux" {
			n.Zone = zones[n.GetName()]
			zoned = append(zoned, &apiv1.Object{Kind: o.Kind})
		}
	}
	if _, err := client.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Objects: zoned})); err != nil {
		t.Fatal(err)
	}
}

// patientHTTP marks no server dead while managers and muxes are killed on a busy machine, because
// long connections to a dead server break.
const patientHTTP = "{http: {path: /healthz}, port: 8080, interval: 500ms, timeout: 500ms, rise: 1, fall: 20}"

// placedWeb returns a web service with two muxes for each VIP.
func placedWeb(name string, number int, more string) service {
	return service{
		name: name, number: number, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1", "host2-vm1", "host3-vm1"},
		more: more, rest: "placement: {replicas: 2}\n", health: patientHTTP,
	}
}

// places holds the muxes of every VIP of some services, and those that are leaving.
type places map[string]*apiv1.VIPPlacement

func readPlaces(ctx context.Context, services []service) (places, error) {
	client, err := shared.Client()
	if err != nil {
		return nil, err
	}
	out := places{}
	for _, s := range services {
		answer, err := client.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{Service: s.name}))
		if err != nil {
			return nil, err
		}
		for _, p := range answer.Msg.GetPlacements() {
			out[p.GetVip()] = p
		}
	}
	return out, nil
}

// counts returns the number of VIPs of each mux.
func (p places) counts() map[string]int {
	out := map[string]int{}
	for _, place := range p {
		for _, mux := range place.GetMuxes() {
			out[mux]++
		}
	}
	return out
}

func (p places) String() string {
	var words []string
	for _, vip := range slices.Sorted(maps.Keys(p)) {
		words = append(words, fmt.Sprintf("%s on %v leaving %v", vip, p[vip].GetMuxes(), p[vip].GetLeaving()))
	}
	return strings.Join(words, "; ")
}

// awaitPlaces waits until every VIP is on two muxes that fit, no mux is leaving, and the router
// reaches the VIP through exactly these.
func awaitPlaces(t *testing.T, what string, services []service, fits func(places) error) places {
	t.Helper()
	var now places
	await(t, what, func(ctx context.Context) (err error) {
		if now, err = readPlaces(ctx, services); err != nil {
			return err
		}
		for _, s := range services {
			for _, vip := range s.vips() {
				p := now[vip.String()]
				if len(p.GetMuxes()) != 2 || len(p.GetLeaving()) > 0 {
					return errors.New(now.String())
				}
				if via, err := muxesAtRouter(vip); err != nil || !slices.Equal(via, p.GetMuxes()) {
					return fmt.Errorf("%s: the router uses %v: %v", now, via, err)
				}
			}
		}
		if fits != nil {
			return fits(now)
		}
		return nil
	})
	return now
}

// muxesAtRouter returns the muxes of the router's routes to a VIP, ordered.
func muxesAtRouter(vip netip.Addr) ([]string, error) {
	via, err := shared.RoutesAtRouter(netip.PrefixFrom(vip, vip.BitLen()))
	var out []string
	for _, hop := range via {
		name := hop.String()
		for mux := range zones {
			n, err := shared.Topology.Find(mux)
			if err != nil {
				return nil, err
			}
			if a := n.Addresses(); hop == a.V4.Addr() || hop == a.V6.Addr() {
				name = mux
			}
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out, err
}

// awaitOnlyOwn waits until the muxes' tables, plans and routes have the VIPs of each mux and no
// others.
func awaitOnlyOwn(t *testing.T, services []service, now places) {
	t.Helper()
	await(t, "muxes with their own VIPs alone", func(ctx context.Context) error {
		client, err := shared.Client()
		if err != nil {
			return err
		}
		for _, s := range services {
			for _, vip := range s.vips() {
				from := "198.51.100.11"
				if vip.Is6() {
					from = "2001:db8:100::11"
				}
				answer, err := client.Trace(ctx, connect.NewRequest(&apiv1.TraceRequest{Client: from, ClientPort: 4242, Vip: vip.String(), Port: uint32(s.port), Protocol: s.protocol}))
				if err != nil {
					return err
				}
				for _, r := range answer.Msg.GetResults() {
					has, want := r.GetVerdict() == "forwarded", slices.Contains(now[vip.String()].GetMuxes(), r.GetNode())
					if has != want {
						return fmt.Errorf("%s on %s: %s %s", vip, r.GetNode(), r.GetVerdict(), r.GetError())
					}
				}
			}
		}
		for mux := range zones {
			if err := ownRoutes(mux, now); err != nil {
				return err
			}
		}
		return nil
	})
}

// ownRoutes compares the output of `shunt describe node` for a mux with the places.
func ownRoutes(mux string, now places) error {
	text, err := shunt("describe", "node", mux, "-o", "json")
	if err != nil {
		return err
	}
	var told struct {
		Status struct {
			Connected bool
			Vips      int
			Routes    []struct {
				Prefix     string
				Advertised bool
			}
			Members []struct{ Vip string }
		}
	}
	if err := json.Unmarshal([]byte(text), &told); err != nil {
		return err
	}
	if !told.Status.Connected {
		return nil
	}
	var want, routes []string
	for vip, p := range now {
		if slices.Contains(p.GetMuxes(), mux) {
			want = append(want, vip)
		}
	}
	for _, r := range told.Status.Routes {
		if !r.Advertised {
			return fmt.Errorf("%s does not advertise %s", mux, r.Prefix)
		}
		vip, _, _ := strings.Cut(r.Prefix, "/")
		if a, err := netip.ParseAddr(vip); err != nil || lab.NAT4.Contains(a) || lab.NAT6.Contains(a) {
			continue // a source address of path nat
		}
		routes = append(routes, vip)
	}
	slices.Sort(want)
	slices.Sort(routes)
	if !slices.Equal(routes, want) || told.Status.Vips != len(want) {
		return fmt.Errorf("%s: %d VIPs, routes %v, want %v", mux, told.Status.Vips, routes, want)
	}
	for _, m := range told.Status.Members {
		if !slices.Contains(want, m.Vip) {
			return fmt.Errorf("%s has members of %s", mux, m.Vip)
		}
	}
	return nil
}

// shunt runs the command line against the lab.
func shunt(args ...string) (string, error) {
	cmd := exec.Command(program, append([]string{"--lab", shared.Topology.Name}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("shunt %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// mustShunt runs a command that must succeed.
func mustShunt(t *testing.T, args ...string) string {
	t.Helper()
	out, err := shunt(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// traffic combines requests on new connections, long connections, and counted datagrams.
type traffic struct {
	load   *lab.Loader
	kept   *kept
	stream *stream
}

// keptEach is the number of long connections to each VIP.
const keptEach = 6

func startTraffic(t *testing.T, web []service, echo service) *traffic {
	t.Helper()
	var targets []string
	for _, s := range web {
		targets = append(targets, s.targets()...)
	}
	load, err := shared.StartLoad("client1", lab.LoadOptions{Targets: targets, Rate: 200, Timeout: 8 * time.Second, ReportEvery: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return &traffic{load: load, kept: keep(t, targets, keptEach), stream: startStream(t, echo.targets())}
}

// end fails the test for each failed request, broken connection and lost datagram.
func (f *traffic) end(t *testing.T) {
	t.Helper()
	reports, err := f.load.Stop()
	if err != nil {
		t.Error(err)
	}
	for _, r := range reports {
		t.Logf("%d requests, %d failed, longest gap %s, answers %v", r.Sent, r.Failed, r.Gap, r.Servers)
		if r.Sent == 0 || r.Failed > 0 {
			t.Errorf("%d of %d requests failed: %v", r.Failed, r.Sent, r.Faults)
		}
	}
	f.kept.end(t)
	sent, lost, gap := f.stream.finish(t)
	t.Logf("%d datagrams, %d lost, longest gap of a flow %s", sent, lost, gap)
	if lost > 0 {
		t.Errorf("%d of %d datagrams were lost:\n%s", lost, sent, f.stream.describe())
	}
}
