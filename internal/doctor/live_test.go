package doctor

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/shuntlb/shunt/internal/netdev"
)

// TestRulesOfThisKernel reads rules and routes that nft and ip create in a namespace.
func TestRulesOfThisKernel(t *testing.T) {
	name := fmt.Sprintf("doctor-%d", os.Getpid())
	if err := netdev.CreateNamespace(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netdev.DeleteNamespace(name) })
	err := netdev.In(name, func() error {
		for _, command := range [][]string{
			{"ip", "link", "add", "up0", "type", "veth", "peer", "name", "r0"}, {"ip", "link", "add", "up1", "type", "veth", "peer", "name", "r1"},
			{"ip", "link", "set", "up0", "up"}, {"ip", "link", "set", "r0", "up"}, {"ip", "link", "set", "up1", "up"}, {"ip", "link", "set", "r1", "up"},
			{"ip", "addr", "add", "10.0.0.1/24", "dev", "up0"}, {"ip", "addr", "add", "10.0.1.1/24", "dev", "up1"},
			{"ip", "-6", "addr", "add", "fd00::1/64", "dev", "up0", "nodad"}, {"ip", "-6", "addr", "add", "fd01::1/64", "dev", "up1", "nodad"},
			{"ip", "route", "add", "default", "nexthop", "via", "10.0.0.2", "dev", "up0", "nexthop", "via", "10.0.1.2", "dev", "up1"},
			{"ip", "-6", "route", "add", "default", "nexthop", "via", "fd00::2", "dev", "up0", "nexthop", "via", "fd01::2", "dev", "up1"},
			{"nft", "add table inet f; add chain inet f forward { type filter hook forward priority 0; policy drop; }; add chain inet f more; " +
				"add rule inet f forward ct state established,related counter accept; add rule inet f forward counter jump more; add rule inet f more ct state invalid counter drop comment \"x\""},
		} {
			if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w: %s", command, err, out)
			}
		}
		rules, err := Local{}.Firewall()
		if err != nil {
			return err
		}
		var drops []drop
		for _, text := range rules {
			drops = append(drops, forwardDrops(text)...)
		}
		want := []drop{{"inet f", "forward", "policy drop", false}, {"inet f", "more", "ct state invalid drop", true}}
		if !slices.Equal(drops, want) {
			t.Errorf("%+v, want %+v, of\n%q", drops, want, rules)
		}
		for _, to := range []netip.Addr{someClient4, someClient6} {
			devices, err := Local{}.RouteDevices(to)
			if slices.Sort(devices); err != nil || !slices.Equal(devices, []string{"up0", "up1"}) {
				t.Errorf("routes to %s leave by %q (%v), want up0 and up1", to, devices, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
