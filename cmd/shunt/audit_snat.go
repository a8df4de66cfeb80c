package main

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// auditSNAT compares the SNAT port leases that nodes report with the stored leases and prints the
// result. It fails when a node differs or does not report.
func (c *client) auditSNAT(ctx context.Context, g *globals, w io.Writer, service string) error {
	response, err := c.AuditSNAT(ctx, connect.NewRequest(&apiv1.AuditSNATRequest{Service: service}))
	if err != nil {
		return err
	}
	nodes := response.Msg.GetNodes()
	if err := printSNATAudit(g, w, nodes); err != nil {
		return err
	}
	differ, silent := 0, 0
	for _, n := range nodes {
		switch {
		case n.GetDifferent() > 0:
			differ++
		case n.GetError() != "":
			silent++
		}
	}
	switch {
	case differ > 0:
		return fmt.Errorf("%d of %d nodes differ from what is stored", differ, len(nodes))
	case silent > 0:
		return fmt.Errorf("%d of %d nodes did not tell everything", silent, len(nodes))
	}
	return nil
}

func printSNATAudit(g *globals, w io.Writer, nodes []*apiv1.SnatNodeAudit) error {
	if g.format != formatTable {
		texts, err := rawJSONs(nodes)
		if err != nil {
			return err
		}
		return g.format.encode(w, texts)
	}
	rows := [][]string{{"NODE", "ROLE", "VIPS", "RANGES", "MOVING", "DIFFERENT", "REVISION", "ERROR"}}
	for _, n := range nodes {
		revision := ""
		if n.GetRevision() != 0 {
			revision = fmt.Sprint(n.GetRevision())
		}
		rows = append(rows, []string{
			n.GetNode(), n.GetRole(), fmt.Sprint(n.GetVips()), fmt.Sprint(n.GetRanges()), fmt.Sprint(n.GetMoving()), fmt.Sprint(n.GetDifferent()), revision, n.GetError(),
		})
	}
	if err := table(w, rows); err != nil {
		return err
	}
	for _, n := range nodes {
		for _, d := range n.GetDifferences() {
			_, err := fmt.Fprintf(w, "%s: %s ports %d-%d: stored as of %s, the node says %s\n",
				n.GetNode(), d.GetVip(), d.GetPort(), d.GetPort()+7, cmp.Or(d.GetStored(), "nobody"), cmp.Or(d.GetSaid(), "nobody"))
			if err != nil {
				return err
			}
		}
	}
	return nil
}
