package main

import (
	"fmt"
	"strings"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// node writes a node's configuration, applied plan and report.
func (d *description) node(o *lb.Node) {
	d.field("Node", o.Name)
	d.field("Role", string(o.Role))
	d.field("Zone", o.Zone)
	d.field("Addresses", strings.ReplaceAll(commas(o.Addresses), ",", ", "))
	if o.Role == lb.RoleMux {
		d.field("VIPs", vipsText(o, nodeStatus(d.status, o.Name)))
		if o.Capacity.Packets > 0 {
			d.field("Capacity", fmt.Sprintf("%d packets a second", o.Capacity.Packets))
		}
		if n := o.NAT; n != nil {
			d.field("NAT", fmt.Sprintf("%s, ports %s", strings.ReplaceAll(commas(n.Addresses), ",", ", "), lb.PortsText(n.Low, n.High)))
		}
	}
	d.stamp()
	n := nodeStatus(d.status, o.Name)
	state, _ := nodeState(o, n)
	d.field("State", state)
	if n.GetSuspect() {
		d.field("Suspect", "so much failed at once that it suspects itself, and keeps earlier verdicts")
	}
	if n.GetStarved() {
		d.field("Starved", "it has no descriptors, ports or memory left for checks, some of which wait or are left out")
	}
	if n.GetCrowded() {
		d.field("Crowded", "its tables have no room for some checks by packets (--max-probes): sockets make them, directly where they would go through a tunnel")
	}
	if n.GetMtuFault() != "" {
		d.field("MTU", "its links are smaller than its Network says, packets of that size are lost: "+n.GetMtuFault())
	}
	if n.GetDrained() {
		d.field("Drained", "on its own machine, until shunt mux --undrain there or its next boot")
	}
	if state == neverSeen {
		return
	}
	if seenBefore(n) {
		d.field("Last seen", n.GetLastSeen().AsTime().Format(time.RFC3339)+", before this manager led")
		return
	}
	d.field("Synced", fmt.Sprintf("revision %d of %d", n.GetSyncedRevision(), d.status.GetRevision()))
	d.field("Last report", n.GetLastSeen().AsTime().Format(time.RFC3339))
	d.field("Version", n.GetVersion())
	if n.GetError() != "" {
		d.field("Error", n.GetError())
	}
	if n.GetNoHandshakes() != "" {
		d.field("Handshakes", "it makes none, which cookie.form co needs: "+n.GetNoHandshakes())
	}
	if u := n.GetUnansweredServers(); len(u) > 0 {
		d.field("Answers lost", fmt.Sprintf("servers get SYNs, and most answers do not leave by the uplink: %s; run shunt doctor --role host there", strings.Join(u, ", ")))
	}
	d.processes(n)
	d.peers(o, n)
	routes := [][]string{{"PREFIX", "ADVERTISED"}}
	for _, r := range n.GetRoutes() {
		routes = append(routes, []string{r.GetPrefix(), yesNo(r.GetAdvertised())})
	}
	d.section("Routes", routes)
	members := [][]string{{"SERVICE", "ENDPOINT", "BACKEND", "MEMBER", "HEALTH", "PACKETS", "LAST-CHECK"}}
	for _, m := range membersOf([]*apiv1.NodeStatus{n}, "") {
		members = append(members, []string{
			m.GetService(), keyOf(m.MemberStatus).String(), backendText(m.GetDip(), m.GetDipPort()), fmt.Sprint(m.GetMember()),
			healthWord(m), fmt.Sprint(m.GetPackets()), m.GetLastCheck(),
		})
	}
	d.section("Members", members)
	servers := [][]string{{"SERVER", "PACKETS-IN", "BYTES-IN", "FLOWS-IN", "PACKETS-OUT", "BYTES-OUT", "FLOWS-OUT"}}
	for _, s := range n.GetServers() {
		servers = append(servers, []string{
			s.GetDip(), fmt.Sprint(s.GetPacketsIn()), fmt.Sprint(s.GetBytesIn()), fmt.Sprint(s.GetFlowsIn()),
			fmt.Sprint(s.GetPacketsOut()), fmt.Sprint(s.GetBytesOut()), fmt.Sprint(s.GetFlowsOut()),
		})
	}
	d.section("Servers", servers)
	classify(n)
	reasons := [][]string{{"REASON", "CLASS", "PACKETS"}}
	for _, r := range n.GetReasons() {
		if r.GetPackets() > 0 {
			reasons = append(reasons, []string{r.GetReason(), r.GetClass(), fmt.Sprint(r.GetPackets())})
		}
	}
	d.section("Reasons", reasons)
}

// processes writes the build of each process of the node, and marks those that differ from the
// agent's.
func (d *description) processes(n *apiv1.NodeStatus) {
	rows := [][]string{{"PROCESS", "PID", "VERSION", "COMMIT", "REMARK"}}
	agent := n.GetProcesses()
	for _, p := range n.GetProcesses() {
		remark := ""
		if p.GetVersion() != agent[0].GetVersion() || p.GetCommit() != agent[0].GetCommit() {
			remark = strings.TrimSuffix("another build than the agent's: "+p.GetKept(), ": ")
		}
		rows = append(rows, []string{p.GetProcess(), fmt.Sprint(p.GetPid()), p.GetVersion(), shortCommit(p.GetCommit()), remark})
	}
	d.section("Processes", rows)
}

// peers writes the BGP peers of a mux, including configured peers that were not reported.
func (d *description) peers(o *lb.Node, n *apiv1.NodeStatus) {
	rows := [][]string{{"PEER", "ASN", "STATE", "BFD", "LOSSES", "LAST REASON"}}
	if o.BGP == nil {
		return
	}
	for _, p := range o.BGP.Peers {
		row := []string{p.Address.String(), fmt.Sprint(p.ASN), "unknown", "", "", ""}
		for _, s := range n.GetPeers() {
			if s.GetAddress() == p.Address.String() {
				row[2], row[3], row[4], row[5] = s.GetState(), s.GetBfd(), fmt.Sprint(s.GetLosses()), s.GetReason()
			}
		}
		rows = append(rows, row)
	}
	d.section("BGP peers", rows)
}

// section writes a titled table, nothing when it is empty.
func (d *description) section(title string, rows [][]string) {
	if len(rows) > 1 {
		d.printf("\n%s\n", title)
		d.table(rows)
	}
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
