package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/cid"
	"github.com/shuntlb/shunt/internal/lb"
)

// defaultClientPort is the default source port of a traced packet: the first ephemeral port of
// Linux.
const defaultClientPort = 32768

func newTrace(g *globals) *cobra.Command {
	var from, to, protocol, node, segment, quicCID string
	cmd := &cobra.Command{
		Use:   "trace --from CLIENT[:PORT] --to VIP:PORT",
		Short: "Tell which backend a packet would go to, and why",
		Long: "Trace asks the muxes to walk their tables as they do for a packet, and prints what each would do and the steps.\n" +
			"Nothing is sent, and nothing remembered. The steps name the endpoint, also one of a range, what limits and source\n" +
			"lists say, the remembered flow, the ring's slot and who of the fallback chain is down. A SYN may choose anew where\n" +
			"a later segment follows its flow: --segment ack asks for that one. A packet of QUIC goes where its connection id says:\n" +
			"--quic-cid asks for one that has it, without it the packet is the first of a connection. The exit code is 1 when no mux\n" +
			"answered, or one could not.",
		Example: "  shunt trace --from 198.51.100.11:50000 --to 203.0.113.10:80\n" +
			"  shunt trace --from 2001:db8:100::11 --to '[2001:db8:f::10]:53' --protocol udp --node mux1\n" +
			"  shunt trace --from 198.51.100.11:50000 --to 203.0.113.10:80 --segment ack\n" +
			"  shunt trace --from 198.51.100.11 --to 203.0.113.10:443 --quic-cid 504dd2d05a7b0de9b2b9907afb5ecf8cc3",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if protocol == "quic" || quicCID != "" && !cmd.Flags().Changed("protocol") {
				protocol = lb.UDP.String()
			}
			if protocol == lb.UDP.String() && cmd.Flags().Changed("segment") {
				return usagef("--segment: %q: must be left out with --protocol udp: only tcp has segments", segment)
			}
			request, err := traceRequest(from, to, protocol, node, segment)
			if err != nil {
				return err
			}
			if request.QuicCid, err = traceCID(quicCID, protocol); err != nil {
				return err
			}
			return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				return c.trace(ctx, g, cmd.OutOrStdout(), request)
			})
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "client's address, with or without a port (default port 32768)")
	cmd.Flags().StringVar(&to, "to", "", "VIP and port")
	cmd.Flags().StringVar(&protocol, "protocol", "tcp", "tcp or udp; quic is udp")
	cmd.Flags().StringVar(&segment, "segment", "syn", "of TCP, the segment that the packet is: syn, ack, fin or rst")
	cmd.Flags().StringVar(&quicCID, "quic-cid", "", "of QUIC, the destination's connection id that the packet has, in hexadecimal; with --protocol udp, which it implies")
	cmd.Flags().StringVar(&node, "node", "", "mux to ask (default: every connected one)")
	return cmd
}

// traceCID reads --quic-cid.
func traceCID(text, protocol string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	if protocol != lb.UDP.String() {
		return nil, usagef("--quic-cid: %q: must be left out with --protocol %s", text, protocol)
	}
	id, err := hex.DecodeString(text)
	if err != nil || len(id) > cid.MaxLength {
		return nil, usagef("--quic-cid: %q: must be 1 to %d octets in hexadecimal", text, cid.MaxLength)
	}
	return id, nil
}

// traceRequest reads the flags.
func traceRequest(from, to, protocol, node, segment string) (*apiv1.TraceRequest, error) {
	if from == "" || to == "" {
		return nil, usagef("needs --from CLIENT[:PORT] and --to VIP:PORT")
	}
	client, err := netip.ParseAddrPort(from)
	if err != nil {
		addr, allowed := lb.ParseAddr(from)
		if allowed != "" {
			return nil, usagef("--from: %q: must be CLIENT or CLIENT:PORT, an IPv6 address with a port in brackets", from)
		}
		client = netip.AddrPortFrom(addr, defaultClientPort)
	}
	vip, err := netip.ParseAddrPort(to)
	if err != nil {
		return nil, usagef("--to: %q: must be VIP:PORT, an IPv6 address in brackets", to)
	}
	if client.Addr().Is4() != vip.Addr().Is4() {
		return nil, usagef("--from: %q: must be of the same family as --to %s", from, to)
	}
	if protocol != lb.TCP.String() && protocol != lb.UDP.String() {
		return nil, usagef("--protocol: %q: must be tcp, udp or quic", protocol)
	}
	if !slices.Contains([]string{"syn", "ack", "fin", "rst"}, segment) {
		return nil, usagef("--segment: %q: must be syn, ack, fin or rst", segment)
	}
	return &apiv1.TraceRequest{
		Client: client.Addr().String(), ClientPort: uint32(client.Port()),
		Vip: vip.Addr().String(), Port: uint32(vip.Port()), Protocol: protocol, Node: node, Segment: segment,
	}, nil
}

func (c *client) trace(ctx context.Context, g *globals, w io.Writer, request *apiv1.TraceRequest) error {
	response, err := c.Trace(ctx, connect.NewRequest(request))
	if err != nil {
		return err
	}
	results := response.Msg.GetResults()
	if len(results) == 0 {
		return fmt.Errorf("no mux answered: none is connected")
	}
	if err := g.printTrace(w, results); err != nil {
		return err
	}
	for _, r := range results {
		if r.GetError() != "" {
			return fmt.Errorf("%s: %s", lb.Ref(lb.KindNode, r.GetNode()), r.GetError())
		}
	}
	return nil
}

// printTrace prints a table of the results, then the steps of each.
func (g *globals) printTrace(w io.Writer, results []*apiv1.TraceResult) error {
	if g.format != formatTable {
		texts, err := rawJSONs(results)
		if err != nil {
			return err
		}
		return g.format.encode(w, texts)
	}
	rows := [][]string{{"NODE", "VERDICT", "SERVICE", "BACKEND", "MEMBER", "OUTER"}}
	for _, r := range results {
		backend, member, verdict := "", "", r.GetVerdict()
		if r.GetDip() != "" {
			backend, member = backendText(r.GetDip(), r.GetDipPort()), fmt.Sprint(r.GetMember())
		}
		if r.GetError() != "" {
			verdict = "error"
		}
		if r.GetNoAgent() != "" {
			verdict += ", " + noAgentWord
		}
		rows = append(rows, []string{r.GetNode(), verdict, r.GetService(), backend, member, r.GetOuterDestination()})
	}
	if err := table(w, rows); err != nil {
		return err
	}
	for _, r := range results {
		if len(r.GetSteps()) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s\n", r.GetNode())
		for _, step := range r.GetSteps() {
			if _, err := fmt.Fprintf(w, "  %s\n", step); err != nil {
				return err
			}
		}
	}
	return nil
}
