package manager

import (
	"testing"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// TestReportsOfTheLargestNodesFit checks the status of a mux whose tables are full at their default
// sizes, and the verdicts of a host with the maximum number of bindings.
func TestReportsOfTheLargestNodesFit(t *testing.T) {
	member := &apiv1.NodeStatus{Members: []*apiv1.MemberStatus{{
		Vip: "203.0.113.100", Protocol: "tcp", Port: 8443, Dip: "10.120.111.111", DipPort: 8443, Member: 4095, Alive: true,
		LastCheck: "HTTP status 200", Packets: 1 << 40, Bytes: 1 << 50, Service: "shop-frontend", Flows: 1 << 16, Weight: 100,
	}}}
	if size := proto.Size(member); size > 110 || size*524_288 > maxMuxReport {
		t.Errorf("a member has %d bytes in a status: 524,288 of them must fit into %d", size, maxMuxReport)
	}
	verdict := &apiv1.HealthReport{Endpoints: []*apiv1.EndpointHealth{{
		Vni: 1 << 23, Vip: "2001:0db8:ffff:ffff:ffff:ffff:ffff:ffff", Protocol: "quic", Port: 60_000, PortEnd: 65_000, Alive: []uint32{65_535},
	}}}
	if size := proto.Size(verdict); size > 72 || size*(65_536+131_072)+1024*600 > maxHostReport {
		t.Errorf("an endpoint has %d bytes in verdicts: 65,536 of bindings and 131,072 of members without must fit into %d", size, maxHostReport)
	}
}
