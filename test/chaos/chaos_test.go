package chaos

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lab"
)

// workers call the API.
const workers = 4

// echoes are the services of the long connections, on every host's server and with a VIP of each
// family: name, checking node, and affinity.
var echoes = []struct{ name, from, affinity string }{
	{"web", "mux", "flow"}, {"hosted", "host", "flow"}, {"cookied", "mux", "cookie"},
}

func echoNames() (names []string) {
	for _, e := range echoes {
		names = append(names, e.name)
	}
	return names
}

// families is how many addresses each VIP and each DIP has.
const families = 2

// echoVIPs returns the VIPs of one of them, of each family.
func echoVIPs(i int) [families]netip.Addr {
	v4, v6 := lab.VIPAddresses(1 + i)
	return [families]netip.Addr{v4, v6}
}

// both returns the addresses of a pair.
func both(p lab.Pair) [families]netip.Addr { return [families]netip.Addr{p.V4.Addr(), p.V6.Addr()} }

// listed formats addresses as YAML.
func listed(addresses [families]netip.Addr) string {
	return fmt.Sprintf("[%q, %q]", addresses[0], addresses[1])
}

// echoYAML returns the YAML of all echoes.
func echoYAML() string {
	var b strings.Builder
	for i, e := range echoes {
		fmt.Fprintf(&b, "---\nkind: Service\nname: %s\nvip: %s\nendpoints:\n- protocol: tcp\n  port: %d\n  affinity: %s\n  health: {tcp: {}, interval: 200ms, timeout: 200ms, fall: 8, from: %s}\n  backends:\n",
			e.name, listed(echoVIPs(i)), lab.EchoPort, e.affinity, e.from)
		for j := 1; j <= cluster.Topology.Hosts.Count; j++ {
			fmt.Fprintf(&b, "  - {dip: %s, port: %d, host: %s}\n", listed(both(lab.VMAddresses(j, 1))), lab.EchoPort, lab.HostAddresses(j).V4.Addr())
		}
	}
	return b.String()
}

// TestChaos breaks managers, muxes, hosts' agents and the links between them by a seeded schedule.
// Only connections whose mux cannot reach their server may break. One order of all calls must
// explain every response of the API. No acknowledged change may be lost, and in the end all nodes
// must agree with the store.
func TestChaos(t *testing.T) {
	logs(t)
	duration := defaultDuration
	if minutes, given := fromEnvironment(t, minutesVariable); given {
		duration = time.Duration(minutes) * time.Minute
	}
	seed, given := fromEnvironment(t, seedVariable)
	if !given {
		seed = rand.Uint64()
	}
	t.Logf("%s of faults, %s=%d", duration, seedVariable, seed)
	if _, err := cluster.Apply(t.Context(), echoYAML()); err != nil {
		t.Fatal(err)
	}
	await(t, "all to agree before anything happens", agree)
	var talks []*talks
	for i, e := range echoes {
		for _, vip := range echoVIPs(i) {
			if err := pin(vip); err != nil {
				t.Fatal(err)
			}
			target := netip.AddrPortFrom(vip, lab.EchoPort).String()
			kept := fmt.Sprintf(" to %s, affinity %s, checked by each %s", target, e.affinity, e.from)
			talks = append(talks,
				startTalks(t, "through "+untouched+kept, oneMuxClient, target, nil),
				startTalks(t, "through any mux"+kept, anyMuxClient, target, &muxesAndHosts))
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	begin := time.Now()
	// Work continues until the last fault is mended.
	working, rest := context.WithCancel(t.Context())
	defer rest()
	h := newHistory(t, duration)
	var work, breaking sync.WaitGroup
	for i := range workers {
		work.Go(func() { h.work(working, i, rand.New(rand.NewPCG(seed, 100+uint64(i)))) })
	}
	var leaderless gap
	work.Go(func() { leaderless = watchLeader(working) })
	counts := make([]tallies, len(lanes))
	for lane := range lanes {
		breaking.Go(func() {
			var err error
			if counts[lane], err = run(ctx, t, lane, seed); err != nil {
				t.Errorf("lane %d: %v", lane, err)
				cancel()
			}
		})
	}
	breaking.Wait()
	rest()
	work.Wait()
	faults := tallies{}
	total := 0
	for _, c := range counts {
		maps.Copy(faults, c)
		for _, n := range c {
			total += n.times
		}
	}
	t.Logf("%d faults in %s:", total, time.Since(begin).Round(time.Second))
	faults.report(t)
	if idle := faults.idle(); len(idle) > 0 {
		t.Errorf("faults without effect: %q", idle)
	}
	t.Logf("the longest time without an answer that only a leader gives was %v", leaderless)

	await(t, "all to agree with the store", agree)
	for _, k := range talks {
		k.end()
	}
	for key := range h.used() {
		for _, name := range named(lab.KindManager, cluster.Topology.Managers) {
			if out := h.do(workers, name, operation{key: key, action: get}, 0); out.unknown {
				t.Errorf("%s does not answer a read when nothing is broken", name)
			}
		}
	}
	h.checkNotes()
	h.check()
}
