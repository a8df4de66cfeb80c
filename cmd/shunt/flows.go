package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/pflag"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// flowsFlags holds the flags of `shunt get flows`.
type flowsFlags struct {
	node, protocol string
	limit          uint32
}

func (f *flowsFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.node, "node", "", "of flows: mux to ask (default: every connected one)")
	fl.StringVar(&f.protocol, "protocol", "", "of flows: only endpoints of this protocol, tcp, udp or any")
	fl.Uint32Var(&f.limit, "limit", 0, "of flows: how many each mux lists (default 1000)")
}

func (f *flowsFlags) given() bool { return *f != flowsFlags{} }

// request reads the flags and VIP[:PORT].
func (f *flowsFlags) request(target string) (*apiv1.FlowsRequest, error) {
	vip, port, err := parseTarget(target)
	if err != nil {
		return nil, usageError{err}
	}
	if f.protocol != "" && f.protocol != "any" {
		if _, allowed := lb.ParseProtocol(f.protocol); allowed != "" {
			return nil, usagef("--protocol: %q: %s", f.protocol, allowed)
		}
	}
	return &apiv1.FlowsRequest{Vip: vip.String(), Port: port, Protocol: f.protocol, Node: f.node, Limit: f.limit}, nil
}

// parseTarget reads VIP or VIP:PORT, where PORT is a port, a range or "*" as in a Service, or
// empty.
func parseTarget(s string) (vip netip.Addr, port string, err error) {
	host := s
	if vip, err = netip.ParseAddr(s); err != nil {
		if i := strings.LastIndexByte(s, ':'); i >= 0 {
			host, port = s[:i], s[i+1:]
		}
		if inner, ok := strings.CutPrefix(host, "["); ok {
			host, _ = strings.CutSuffix(inner, "]")
		}
		vip, err = netip.ParseAddr(host)
	}
	if err != nil || vip.Zone() != "" || port == "" && strings.HasSuffix(s, ":") {
		return vip, port, fmt.Errorf("%q: must be VIP or VIP:PORT, an IPv6 address with a port in brackets", s)
	}
	if port != "" {
		if _, _, allowed := lb.ParsePorts(port); allowed != "" {
			return vip, port, fmt.Errorf("%q: PORT: %s: %s", s, port, allowed)
		}
	}
	return vip.Unmap(), port, nil
}

// getFlows prints the muxes' flow table entries.
func (c *client) getFlows(ctx context.Context, g *globals, w io.Writer, request *apiv1.FlowsRequest) error {
	response, err := c.Flows(ctx, connect.NewRequest(request))
	if err != nil {
		return err
	}
	results := response.Msg.GetResults()
	if g.format != formatTable {
		texts, err := rawJSONs(results)
		if err != nil {
			return err
		}
		if err := g.format.encode(w, texts); err != nil {
			return err
		}
		return flowsErrors(results)
	}
	rows := [][]string{{"NODE", "SERVICE", "ENDPOINT", "BACKEND", "MEMBER", "CLASS", "AGE", "PACKETS", "BYTES"}}
	for _, r := range results {
		for _, f := range r.GetFlows() {
			rows = append(rows, []string{
				r.GetNode(), f.GetService(), f.GetProtocol() + "/" + endpointText(f.GetVip(), f.GetPort()), backendText(f.GetDip(), f.GetDipPort()),
				strconv.Itoa(int(f.GetMember())), f.GetClass(), f.GetAge().AsDuration().Round(time.Second).String(),
				counted(f.GetPackets()), counted(f.GetBytes()),
			})
		}
	}
	if err := table(w, rows); err != nil {
		return err
	}
	for _, r := range results {
		if r.GetTruncated() {
			fmt.Fprintf(w, "%s has more than these %d: raise --limit\n", r.GetNode(), len(r.GetFlows()))
		}
	}
	return flowsErrors(results)
}

// counted returns n as text, or "-" for 0, because entries without a count have 0.
func counted(n uint64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(n, 10)
}

// flowsErrors returns the first error of a mux.
func flowsErrors(results []*apiv1.FlowsResult) error {
	for _, r := range results {
		if r.GetError() != "" {
			return fmt.Errorf("%s: %s", lb.Ref(lb.KindNode, r.GetNode()), r.GetError())
		}
	}
	return nil
}

// endpointText returns VIP:PORT with PORT as in a Service.
func endpointText(vip, port string) string {
	if strings.Contains(vip, ":") {
		vip = "[" + vip + "]"
	}
	return vip + ":" + port
}

// backendText returns a backend without its port if that is 0, because packets of port ranges keep
// their port.
func backendText(dip string, port uint32) string {
	if dip == "" || port == 0 {
		return dip
	}
	return hostPort(dip, port)
}
