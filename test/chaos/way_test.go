package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// gatewayOf returns the router's device that is the gateway of a node: the bridge of all muxes, or
// the link of a host.
func gatewayOf(node string) (string, error) {
	n, err := cluster.Topology.Find(node)
	if err != nil {
		return "", err
	}
	if n.Kind == lab.KindMux {
		return "muxes", nil
	}
	return n.Name, nil
}

// routerNamespace returns the name of the router's network namespace.
func routerNamespace() string { return lab.Node{Name: "router1"}.Namespace(cluster.Topology.Name) }

// changeGateway changes the Ethernet address of a node's gateway, which announces it like a router
// that takes over an address by VRRP: with gratuitous ARP and unsolicited neighbor advertisements.
// The mend changes it once more.
func changeGateway(node string) (mending, error) {
	device, err := gatewayOf(node)
	if err != nil {
		return nil, err
	}
	if err := netdev.SetSysctls(routerNamespace(), []netdev.Sysctl{
		{Key: "net/ipv4/conf/" + device + "/arp_notify", Value: "1"},
		{Key: "net/ipv6/conf/" + device + "/ndisc_notify", Value: "1"},
	}); err != nil {
		return nil, err
	}
	change := func(context.Context) error {
		n := rand.Uint32()
		address := fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
		return ip("router1", "link", "set", "dev", device, "address", address)
	}
	return change, change(context.Background())
}

// dropFrames makes the router's end of a node's link drop frames to or from the node, by a rule of
// nftables.
func dropFrames(node string, to bool, rule string) (mending, error) {
	hook := "ingress"
	if to {
		hook = "egress"
	}
	table := lossTable(node)
	_, err := nft("add table "+table, fmt.Sprintf("add chain %s frames { type filter hook %s device %q priority 0; }", table, hook, node),
		fmt.Sprintf("add rule %s frames %s", table, rule))
	gone := func(context.Context) error {
		_, err := nft("delete table " + table)
		return err
	}
	if err != nil {
		return nil, errors.Join(err, gone(context.Background()))
	}
	return gone, nil
}

// lossTable returns the table of the rule that drops frames of a node.
func lossTable(node string) string { return "netdev lossy-" + node }

// nft runs commands of nft(8) at the router and returns its output.
func nft(commands ...string) (string, error) {
	cmd := exec.Command("ip", "netns", "exec", routerNamespace(), "nft", strings.Join(commands, "; "))
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("nft %v: %w: %s", commands, err, out)
	}
	return string(out), err
}
