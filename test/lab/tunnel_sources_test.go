package lab_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// TestTunnelSourcesChange changes a Network's tunnelSources four times under traffic, the second
// time while the first change is in progress. No datagram is lost and no host drops a tunnel
// packet, because hosts accept the new sources before any mux uses them, and the old ones until
// none does.
func TestTunnelSourcesChange(t *testing.T) {
	logsOnFailure(t, shared)
	s := service{name: "tunnel-sources", number: 168, protocol: "udp", port: 7, dipPort: 7, backends: everyVM}
	s.up(t)
	network := networkOf(t)
	before := network.GetTunnelSources()
	t.Cleanup(func() { changeTunnelSources(context.Background(), t, network, before) })
	hosts := map[string]*frames{}
	for _, n := range status(t.Context(), t).GetNodes() {
		if n.GetRole() == "host" {
			hosts[n.GetName()] = listen(t, n.GetName(), "eth0")
		}
	}
	dropped := countOf(t.Context(), t, "host", "in_bad_source")
	traffic := startStream(t, s.targets())
	for i, sources := range [][]string{
		{"100.65.0.0/16", "fd53:6875:6e75::/64"},
		{"100.66.0.0/16", "fd53:6875:6e76::/64"},
		{"100.66.7.0/24", "fd53:6875:6e76::/64"},
		before,
	} {
		changeTunnelSources(t.Context(), t, network, sources)
		if i == 0 {
			continue // the next change comes while this one is in progress
		}
		prefix := netip.MustParsePrefix(sources[0])
		await(t, fmt.Sprintf("tunnels from %s only", prefix), func(context.Context) error {
			for _, f := range hosts {
				f.forget()
			}
			traffic.awaitAnswers(t)
			inside, outside := 0, 0
			for _, f := range hosts {
				for _, one := range f.those(func(one frame) bool { return !one.out && one.kind() == 0x0800 && one.data[23] == 4 }) {
					if prefix.Contains(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(one.data[26:30]))))) {
						inside++
					} else {
						outside++
					}
				}
			}
			if inside == 0 || outside > 0 {
				return fmt.Errorf("%d tunnel packets are from there, %d are not", inside, outside)
			}
			return nil
		})
	}
	if sent, lost, _ := traffic.finish(t); lost > 0 {
		t.Errorf("%d of %d datagrams were lost: %s", lost, sent, traffic.describe())
	}
	await(t, "no tunnel packet dropped", func(ctx context.Context) error {
		if n := countOf(ctx, t, "host", "in_bad_source") - dropped; n > 0 {
			t.Fatalf("hosts dropped %d tunnel packets because of their source", n)
		}
		return nil
	})
}

// networkOf returns the lab's Network.
func networkOf(t *testing.T) *apiv1.Network {
	t.Helper()
	client, err := shared.Client()
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: "Network"}))
	if err != nil || len(res.Msg.GetObjects()) != 1 {
		t.Fatalf("networks: %v %v", res, err)
	}
	return res.Msg.GetObjects()[0].GetNetwork()
}

// changeTunnelSources applies the Network with other sources.
func changeTunnelSources(ctx context.Context, t *testing.T, n *apiv1.Network, sources []string) {
	t.Helper()
	client, err := shared.Client()
	if err != nil {
		t.Fatal(err)
	}
	changed := &apiv1.Network{
		Name: n.GetName(), Vips: n.GetVips(), Underlay: n.GetUnderlay(), Mtu: n.GetMtu(), TunnelSources: sources, Encap: n.GetEncap(), Switches: n.GetSwitches(),
	}
	request := &apiv1.ApplyRequest{Objects: []*apiv1.Object{{Kind: &apiv1.Object_Network{Network: changed}}}, Force: true}
	if _, err := client.Apply(ctx, connect.NewRequest(request)); err != nil {
		t.Fatalf("change tunnelSources to %v: %v", sources, err)
	}
}
