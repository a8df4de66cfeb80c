package packet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unique"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
)

var (
	muxAddress    = netip.MustParseAddr("10.10.0.11")
	serverAddress = netip.MustParseAddr("10.10.0.1")
	muxAddress6   = netip.MustParseAddr("2001:db8:10::11")
	serverAddr6   = netip.MustParseAddr("2001:db8:10::1")
	// targets are prefixes whose addresses are all local in the servers' namespace.
	targets  = netip.MustParsePrefix("10.30.0.0/15")
	targets6 = netip.MustParsePrefix("2001:db8:30::/64")
)

var rigs atomic.Int32

// rig is a mux with its XDP program in a namespace, a veth from it to a namespace of real servers,
// and a prober.
type rig struct {
	t       testing.TB
	mux     *dataplane.Mux
	muxNS   *netdev.Namespace
	servers *netdev.Namespace
	asker   *Asker
	answers chan []probe.Answer
	ways    chan netdev.Ways
	next    uint32
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func namespace(t testing.TB, name string) *netdev.Namespace {
	t.Helper()
	must(t, netdev.CreateNamespace(name))
	t.Cleanup(func() { netdev.DeleteNamespace(name) })
	n, err := netdev.OpenNamespace(name)
	must(t, err)
	t.Cleanup(n.Close)
	must(t, n.SetUp("lo", true))
	return n
}

func newRig(t testing.TB) *rig {
	t.Helper()
	id := fmt.Sprintf("%d-%d", os.Getpid(), rigs.Add(1))
	r := &rig{t: t, muxNS: namespace(t, "probemux-"+id), servers: namespace(t, "probesrv-"+id), answers: make(chan []probe.Answer, 1<<16), ways: make(chan netdev.Ways, 1<<10)}
	must(t, netdev.AddVeth(netdev.VethEnd{Namespace: r.muxNS, Name: "up0"}, netdev.VethEnd{Namespace: r.servers, Name: "eth0"}, 1500))
	must(t, r.servers.SetOffload("eth0", netdev.OffloadTxChecksum, false))
	must(t, r.servers.SetOffload("eth0", netdev.OffloadGRO, true))
	must(t, r.muxNS.AddAddress("up0", netip.PrefixFrom(muxAddress, 24)))
	must(t, r.muxNS.AddAddress("up0", netip.PrefixFrom(muxAddress6, 64)))
	must(t, r.servers.AddAddress("eth0", netip.PrefixFrom(serverAddress, 24)))
	must(t, r.servers.AddAddress("eth0", netip.PrefixFrom(serverAddr6, 64)))
	must(t, r.muxNS.AddRoute(netdev.Route{Destination: targets, Via: serverAddress, Device: "up0"}))
	must(t, r.muxNS.AddRoute(netdev.Route{Destination: targets6, Via: serverAddr6, Device: "up0"}))
	must(t, r.servers.AddLocal(targets))
	must(t, r.servers.AddLocal(targets6))
	must(t, netdev.SetSysctls(r.servers.Name, []netdev.Sysctl{{Key: "net/core/somaxconn", Value: "65535"}, {Key: "net/ipv4/tcp_max_syn_backlog", Value: "65535"}}))

	var device netdev.Interface
	dir := filepath.Join("/sys/fs/bpf", "shunt-"+id)
	var sender Sender
	must(t, netdev.In(r.muxNS.Name, func() (err error) {
		if device, err = netdev.FindInterface("up0"); err != nil {
			return err
		}
		r.mux, err = dataplane.OpenMux(dataplane.MuxOptions{
			Ifindex: device.Index, Redirect: true, BPFFS: dir,
			Limits:    dataplane.MuxLimits{Endpoints: 64, Members: 64, Backends: 64, RingWords: 1 << 12, Flows: 1 << 16, Sources: 1 << 10, Probes: 1 << 18},
			DeviceMAC: func(int) ([6]byte, error) { return device.MAC, nil },
		})
		if err == nil {
			sender, err = NewSender()
		}
		return err
	}))
	t.Cleanup(func() {
		r.mux.Close()
		dataplane.DetachMux(dir)
		os.Remove(dir)
	})
	tables, err := r.mux.Probes()
	must(t, err)
	hops := netdev.NewNextHops()
	r.asker, err = New(Options{
		Tables: tables, Sender: sender, Want: hops.Want, Devices: []int{device.Index},
		Report: func(a []probe.Answer) { r.answers <- append([]probe.Answer(nil), a...) },
		Local: func(is4 bool) netip.Addr {
			if is4 {
				return muxAddress
			}
			return muxAddress6
		},
	})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() {
		err := netdev.In(r.muxNS.Name, func() error {
			return hops.Follow(ctx, func(ways netdev.Ways) {
				r.asker.HopsChanged(ways)
				r.ways <- ways
			})
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		following.Wait()
		must(t, r.asker.Close())
	})
	return r
}

// serve answers every connection to a port of the servers with f.
func (r *rig) serve(port int, f func(net.Conn)) {
	r.t.Helper()
	var l net.Listener
	must(r.t, netdev.In(r.servers.Name, func() (err error) {
		l, err = (&net.ListenConfig{KeepAlive: -1}).Listen(context.Background(), "tcp", fmt.Sprintf(":%d", port))
		return err
	}))
	r.t.Cleanup(func() { l.Close() })
	for range 2 {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go f(c)
			}
		}()
	}
}

// say reads a request and answers with text.
func say(text string) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close()
		b := make([]byte, 2048)
		if n, err := c.Read(b); err == nil && strings.HasSuffix(string(b[:n]), "\r\n\r\n") {
			fmt.Fprint(c, text)
		}
	}
}

// answer200 is a complete answer.
const answer200 = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"

// target returns a target at an address.
func target(a netip.AddrPort, change func(*lb.Check)) probe.Target {
	c := lb.Check{Timeout: 30 * time.Second, Interval: time.Minute}
	change(&c)
	c.SetDefaults()
	return probe.Target{Check: unique.Make(c), Address: a}
}

func tcp(c *lb.Check)  { c.Kind = lb.CheckTCP }
func http(c *lb.Check) { c.Kind, c.Path, c.Host = lb.CheckHTTP, "/healthz", "www.example.com" }

// within returns change with another timeout.
func within(d time.Duration, change func(*lb.Check)) func(*lb.Check) {
	return func(c *lb.Check) { change(c); c.Timeout = d }
}

// add registers targets and returns their numbers.
func (r *rig) add(all ...probe.Target) (ids []uint32) {
	r.t.Helper()
	for _, t := range all {
		must(r.t, r.asker.Add(r.next, t))
		ids = append(ids, r.next)
		r.next++
	}
	return ids
}

// resolve waits until the prober has resolved ways to these addresses.
func (r *rig) resolve(all ...netip.Addr) {
	for ways := range r.ways {
		if !slices.ContainsFunc(all, func(a netip.Addr) bool { hop, _ := ways.To(a); return !hop.Resolved }) {
			return
		}
	}
}

// ask probes and waits for exactly one answer each.
func (r *rig) ask(ids []uint32) map[uint32]probe.Answer {
	r.t.Helper()
	r.asker.Ask(ids)
	got := map[uint32]probe.Answer{}
	for len(got) < len(ids) {
		for _, a := range <-r.answers {
			if _, twice := got[a.ID]; twice {
				r.t.Fatalf("two answers: %+v", a)
			}
			got[a.ID] = a
		}
	}
	return got
}

// many returns n targets, ports of them at each address.
func many(n, ports int, change func(*lb.Check)) []probe.Target {
	out := make([]probe.Target, 0, n)
	at := targets.Addr()
	for i := range n {
		if i%ports == 0 {
			at = at.Next()
		}
		out = append(out, target(netip.AddrPortFrom(at, uint16(8000+i%ports)), change))
	}
	return out
}
