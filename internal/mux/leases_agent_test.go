package mux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/snat"
)

const (
	snatVIP  = "203.0.113.10"
	plainVIP = "203.0.113.11"
	snatDIP  = "10.20.1.11"
)

// leasedWorld is an agent with two VIPs, of which one has SNAT after a manager configured it.
type leasedWorld struct {
	*world
	data *dataplane.FakeMuxSNAT
	book *snat.Book
	rev  int64
	file string
}

func newLeasedWorld(t *testing.T) *leasedWorld {
	w := &leasedWorld{world: newWorld(t), data: &dataplane.FakeMuxSNAT{}, book: snat.NewBook(), rev: 1, file: filepath.Join(t.TempDir(), "snat-vips")}
	w.begin()
	return w
}

// begin starts an agent with an applied plan whose members are alive.
func (w *leasedWorld) begin() {
	w.leases = NewLeases(w.data, w.clock)
	if err := w.leases.Remember(w.file); err != nil {
		w.t.Fatal(err)
	}
	w.restart()
	w.apply(planOf([]string{snatVIP, plainVIP}, snatDIP))
	for range 2 {
		w.probe(snatDIP, true, "")
	}
}

// vip returns the manager's configuration of the VIP with SNAT.
func (w *leasedWorld) vip(dips ...string) []*apiv1.SnatVIP {
	v := &apiv1.SnatVIP{Vip: snatVIP, Service: "web"}
	for _, dip := range dips {
		v.Dips = append(v.Dips, &apiv1.SnatDIP{Dip: dip, Outer: dip, Encap: "ipip"})
	}
	return []*apiv1.SnatVIP{v}
}

func (w *leasedWorld) hear(in *apiv1.SnatLeases) {
	w.t.Helper()
	if err := w.leases.Hear(&apiv1.PlanUpdate{SnatLeases: in}); err != nil {
		w.t.Fatal(err)
	}
	w.agent.Speak(context.Background())
}

// snapshot delivers a complete snapshot with one lease.
func (w *leasedWorld) snapshot() {
	w.t.Helper()
	w.leases.Begin()
	w.hear(&apiv1.SnatLeases{Snapshot: true, Configured: true, Vips: w.vip(snatDIP)})
	in := &apiv1.SnatLeases{Newest: true, Revision: w.rev}
	if p := w.book.Page(snat.VIP{Addr: netip.MustParseAddr(snatVIP)}); p != nil {
		in.Pages = append(in.Pages, p.Pack(nil))
	}
	w.hear(in)
}

// announces checks the announced VIPs.
func (w *leasedWorld) announces(when string, vips ...string) {
	w.t.Helper()
	var got []string
	for _, r := range w.speaker.State().Routes {
		got = append(got, r.Prefix.Addr().String())
	}
	if !slices.Equal(got, vips) {
		w.t.Fatalf("%s: announces %v, expected %v", when, got, vips)
	}
}

// ranked checks the rank of the route to the VIP with SNAT; the other VIP's route has rank 0.
func (w *leasedWorld) ranked(when string, want uint8) {
	w.t.Helper()
	w.announces(when, snatVIP, plainVIP)
	for _, r := range w.speaker.State().Routes {
		wanted := want
		if r.Prefix.Addr().String() != snatVIP {
			wanted = rankNewest
		}
		if r.Rank != wanted {
			w.t.Errorf("%s: the route to %v has rank %d, expected %d", when, r.Prefix, r.Rank, wanted)
		}
	}
}

// lease folds a lease of the DIP into the manager's lease store and returns the batch.
func (w *leasedWorld) lease(r snat.Range) []byte {
	w.t.Helper()
	b := &snat.Batch{Number: w.book.Last() + 1, At: w.clock.Now(), Sections: []snat.Section{{
		VIP: snat.VIP{Addr: netip.MustParseAddr(snatVIP)}, Leased: []snat.Lease{{DIP: netip.MustParseAddr(snatDIP), Range: r}},
	}}}
	raw := b.Pack(nil)
	if err := w.book.Fold(b, len(raw)); err != nil {
		w.t.Fatal(err)
	}
	return raw
}

// TestRoutesRankBehindNewerLeases: a mux that lacks leases, or has unconfirmed ones, announces the
// VIP with a higher rank than muxes with the newest ones, so that clients are still served if no
// mux has those.
func TestRoutesRankBehindNewerLeases(t *testing.T) {
	w := newLeasedWorld(t)
	w.ranked("before anybody spoke of SNAT", rankNewest)
	w.leases.Begin()
	w.hear(&apiv1.SnatLeases{Snapshot: true, Configured: true, Vips: w.vip(snatDIP)})
	w.ranked("half of the snapshot is there", rankWithout)
	if err := w.agent.Status().GetError(); !strings.Contains(err, "1 of 1 VIPs are not loaded") {
		t.Errorf("status says %q", err)
	}
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: 1})
	w.ranked("the leases are there", rankNewest)

	w.clock.Advance(DefaultLeaseFor)
	w.agent.Speak(context.Background())
	w.ranked("as long as managers may be silent", rankNewest)
	w.clock.Advance(time.Millisecond)
	w.agent.Speak(context.Background())
	w.ranked("no manager confirmed for too long", rankUnconfirmed)
	if err := w.agent.Status().GetError(); !strings.Contains(err, "no manager confirmed within 10s") {
		t.Errorf("status says %q", err)
	}
	w.leases.Begin()
	w.hear(&apiv1.SnatLeases{Snapshot: true, Configured: true, Vips: w.vip(snatDIP)})
	w.ranked("half of the next snapshot is there", rankUnconfirmed)
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: 2})
	w.ranked("a manager is back", rankNewest)
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: 2, Configured: true})
	w.clock.Advance(time.Hour)
	w.agent.Speak(context.Background())
	w.ranked("the service has no snat any more", rankNewest)
	if err := w.agent.Status().GetError(); err != "" {
		t.Errorf("status says %q", err)
	}
}

// TestRemovedLeaseNamesAreRestored: the next agent has the VIPs with SNAT even if the state
// directory was removed.
func TestRemovedLeaseNamesAreRestored(t *testing.T) {
	w := newLeasedWorld(t)
	w.file = filepath.Join(t.TempDir(), "state", "snat")
	if err := w.leases.Remember(w.file); err != nil {
		t.Fatal(err)
	}
	w.leases.Begin()
	w.hear(&apiv1.SnatLeases{Snapshot: true, Newest: true, Revision: 1, Configured: true, Vips: w.vip(snatDIP)})
	w.agent.Speak(context.Background())
	names := func(when, want string) {
		t.Helper()
		if text, err := os.ReadFile(w.file); err != nil || string(text) != want {
			t.Errorf("%s: the file says %q, %v; want %q", when, text, err, want)
		}
	}
	names("at first", snatVIP+"\n")
	if err := os.RemoveAll(filepath.Dir(w.file)); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(heardPace)
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: 1})
	names("after its directory was removed", snatVIP+"\n")
	if info, err := os.Stat(w.file); err != nil || !info.ModTime().Equal(w.clock.Now()) {
		t.Errorf("its time is %v, %v; want %v", info.ModTime(), err, w.clock.Now())
	}
}

// TestVIPIsAnnouncedForServersThatHoldItsPorts: a VIP with leased ports is announced whatever the
// health of its endpoints; without leases health decides.
func TestVIPIsAnnouncedForServersThatHoldItsPorts(t *testing.T) {
	w := newLeasedWorld(t)
	unhealthy := func() {
		for range 3 {
			w.probe(snatDIP, false, "refused")
		}
		w.agent.Speak(context.Background())
	}
	healthy := func() {
		for range 3 {
			w.probe(snatDIP, true, "")
		}
		w.agent.Speak(context.Background())
	}
	w.snapshot()
	unhealthy()
	w.announces("no server holds ports", []string{}...)
	w.rev++
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: w.rev, Batches: [][]byte{w.lease(200)}})
	w.announces("a server got ports", snatVIP)
	healthy()
	w.announces("all are healthy", snatVIP, plainVIP)
	unhealthy()
	w.announces("none is healthy", snatVIP)
	w.begin() // the tables have the leases, and no manager has sent anything
	unhealthy()
	w.announces("after a restart of the agent", snatVIP)

	w.data.Fail(snat.VIP{Addr: netip.MustParseAddr(snatVIP)}, errors.New("no room"))
	w.snapshot()
	w.announces("the tables have no room for the leases", []string{}...)
	w.data.Fail(snat.VIP{Addr: netip.MustParseAddr(snatVIP)}, nil)
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: w.rev})
	w.announces("they have room", snatVIP)
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: w.rev, Configured: true, Vips: w.vip()})
	w.announces("the server left snat", []string{}...)
}

// TestVIPWaitsForMembersDespiteLeases: a mux that starts must not attract clients' packets before
// its members were probed, even if servers hold ports.
func TestVIPWaitsForMembersDespiteLeases(t *testing.T) {
	w := &leasedWorld{world: newWorld(t), data: &dataplane.FakeMuxSNAT{}, book: snat.NewBook(), rev: 2, file: filepath.Join(t.TempDir(), "snat-vips")}
	w.leases = NewLeases(w.data, w.clock)
	w.restart()
	const other = "10.20.2.11"
	w.apply(planOf([]string{snatVIP}, snatDIP, other))
	w.lease(200)
	w.snapshot()
	w.announces("no member was asked", []string{}...)
	w.clock.Advance(comebackWait)
	w.agent.Speak(context.Background())
	w.announces("no member answered for as long as a VIP waits", snatVIP)
}

// TestAgentStartsWithWordsOfTheOneBefore: the VIPs have the same ranks as without the restart.
func TestAgentStartsWithWordsOfTheOneBefore(t *testing.T) {
	w := newLeasedWorld(t)
	w.snapshot()
	w.begin()
	w.ranked("with words of the agent before", rankNewest)
	w.leases.Begin()
	w.hear(&apiv1.SnatLeases{Snapshot: true, Configured: true, Vips: w.vip(snatDIP)})
	w.ranked("while a snapshot comes", rankNewest)
	w.clock.Advance(DefaultLeaseFor + 1)
	w.agent.Speak(context.Background())
	w.ranked("when it does not end", rankUnconfirmed)
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: 1})
	w.ranked("when it is there", rankNewest)

	// After a long absence, ports may have other holders than in the tables.
	w.clock.Advance(DefaultLeaseFor + 1)
	w.begin()
	w.ranked("with words that were confirmed too long ago", rankUnconfirmed)

	// VIPs that the manager no longer configures are removed.
	w.leases.Begin()
	w.hear(&apiv1.SnatLeases{Snapshot: true, Configured: true, Revision: 2})
	w.ranked("the service has no snat any more", rankNewest)
	if held := w.data.HeldSNAT(); len(held) != 0 {
		t.Errorf("the tables have %v", held)
	}
}

// TestAgentStartsWithoutWords: after a reboot only the names of VIPs with SNAT are known. Without a
// manager their routes rank behind those of all other muxes.
func TestAgentStartsWithoutWords(t *testing.T) {
	w := newLeasedWorld(t)
	file := w.file
	w.snapshot()
	if text, err := os.ReadFile(file); err != nil || string(text) != snatVIP+"\n" {
		t.Fatalf("the file says %q, %v", text, err)
	}
	w.data = &dataplane.FakeMuxSNAT{}
	w.leases = NewLeases(w.data, w.clock)
	if err := w.leases.Remember(file); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.apply(planOf([]string{snatVIP, plainVIP}, snatDIP))
	for range 2 {
		w.probe(snatDIP, true, "")
	}
	w.ranked("without words", rankWithout)
	w.snapshot()
	w.ranked("with the leases", rankNewest)
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: 2, Configured: true})
	if text, err := os.ReadFile(file); err != nil || len(text) != 0 {
		t.Errorf("the file says %q, %v", text, err)
	}
	if err := w.leases.Remember(t.TempDir()); err == nil {
		t.Error("a directory was read as the file")
	}
}

// TestTablesWithoutRoom: a VIP whose leases do not fit into the tables ranks behind muxes that have
// room, and is reported. Everything else continues, and the rank is restored when there is room.
func TestTablesWithoutRoom(t *testing.T) {
	w := newLeasedWorld(t)
	w.data.Fail(snat.VIP{Addr: netip.MustParseAddr(snatVIP)}, fmt.Errorf("set SNAT of 203.0.113.10: %w", &dataplane.NoRoom{Table: dataplane.TableSNAT}))
	w.snapshot()
	w.ranked("there is no room", rankWithout)
	st := w.agent.Status()
	if !strings.Contains(st.GetError(), "table snat_vips is full: VIPs "+snatVIP) {
		t.Errorf("status says %q", st.GetError())
	}
	if got := st.GetWithheld(); len(got) != 1 || got[0].GetVip() != snatVIP || got[0].GetTable() != dataplane.TableSNAT || got[0].GetService() == "" {
		t.Errorf("withheld %v", got)
	}
	var rep apiv1.NodeReport
	if !w.leases.Say(&rep) || rep.GetSnatAck().GetRevision() != w.rev {
		t.Errorf("acknowledged %v: other VIPs must not wait for this one", rep.GetSnatAck())
	}
	w.data.Fail(snat.VIP{Addr: netip.MustParseAddr(snatVIP)}, nil)
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: w.rev})
	w.ranked("there is room", rankNewest)
	if got := w.agent.Status().GetWithheld(); len(got) != 0 {
		t.Errorf("there is room, and %v is withheld", got)
	}
	if _, ok := w.data.DIP(snat.VIP{Addr: netip.MustParseAddr(snatVIP)}, 1024); ok {
		t.Error("a port is somebody's")
	}
}

// TestLeasesAreAcknowledgedWhenTheyServe: leases are not acknowledged while packets still use the
// tables of a previous agent.
func TestLeasesAreAcknowledgedWhenTheyServe(t *testing.T) {
	w := newLeasedWorld(t)
	w.data.Idle(true)
	w.snapshot()
	for len(w.leases.Says()) > 0 {
		<-w.leases.Says()
	}
	var rep apiv1.NodeReport
	if w.leases.Say(&rep) {
		t.Errorf("acknowledged %v", rep.GetSnatAck())
	}
	w.data.Idle(false)
	// the tables begin to serve with this plan
	w.apply(planOf([]string{snatVIP, plainVIP}, snatDIP))
	select {
	case <-w.leases.Says():
	default:
		t.Fatal("nobody was told that there is something to say")
	}
	if !w.leases.Say(&rep) || rep.GetSnatAck().GetRevision() != w.rev {
		t.Errorf("acknowledged %v", rep.GetSnatAck())
	}
}

// TestServersGetThePathsMTU: servers with leases get path MTUs as members of endpoints do.
func TestServersGetThePathsMTU(t *testing.T) {
	w := newLeasedWorld(t)
	vip, dip := snat.VIP{Addr: netip.MustParseAddr(snatVIP)}, netip.MustParseAddr(snatDIP)
	mtu := func(want uint32) {
		t.Helper()
		w.agent.tellPaths()
		if m := w.data.Members(vip); len(m) != 1 || m[0].MTU != want || m[0].DIP != dip {
			t.Errorf("members %+v, expected an MTU of %d", m, want)
		}
	}
	w.snapshot()
	mtu(1500)
	w.agent.HopsChanged(map[netip.Addr]netdev.NextHop{dip: {Ifindex: 2, MTU: 1400}})
	mtu(1400)
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: 1, Configured: true, Vips: w.vip(snatDIP)})
	mtu(1400)
	w.snapshot()
	mtu(1400)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.agent.FollowLeases(ctx) }()
	cancel()
	<-done
}

// TestTraceNamesTheServer: a trace of a packet to a leased port, for which there is no endpoint,
// has its server.
func TestTraceNamesTheServer(t *testing.T) {
	w := newLeasedWorld(t)
	b := &snat.Batch{Number: 1, At: w.clock.Now(), Sections: []snat.Section{{VIP: snat.VIP{Addr: netip.MustParseAddr(snatVIP)}, Leased: []snat.Lease{{DIP: netip.MustParseAddr(snatDIP), Range: 128}}}}}
	if err := w.book.Fold(b, len(b.Pack(nil))); err != nil {
		t.Fatal(err)
	}
	w.snapshot()
	dip, service, ok := w.leases.Holder(netip.MustParseAddr(snatVIP), 1027)
	if !ok || dip != netip.MustParseAddr(snatDIP) || service != "web" {
		t.Errorf("port 1027 is %v's of %q, %v", dip, service, ok)
	}
	if dip, _, ok := w.leases.Holder(netip.MustParseAddr(snatVIP), 1032); ok {
		t.Errorf("port 1032 is %v's", dip)
	}
	if _, _, ok := w.leases.Holder(netip.MustParseAddr(plainVIP), 1027); ok {
		t.Error("a VIP without SNAT has leases")
	}
	out := &apiv1.TraceResult{}
	w.agent.traceLease(dataplane.Packet{VIP: netip.MustParseAddr(snatVIP), Port: 1027}, dataplane.Trace{Outer: netip.MustParseAddr(snatDIP)}, out)
	if out.GetDip() != snatDIP || out.GetService() != "web" || out.GetOuterDestination() != snatDIP || len(out.GetSteps()) != 1 {
		t.Errorf("traced %v", out)
	}
}
