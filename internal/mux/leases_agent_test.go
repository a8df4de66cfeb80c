package mux

import (
	"context"
	"errors"
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

// leasedWorld is an agent of two VIPs, of which one has SNAT as soon as a manager says so.
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

// begin starts an agent that obeys its plan and whose members are alive.
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

// vip is what a manager says of the VIP with SNAT.
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

// snapshot is a whole one of one lease.
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

// announces checks what routers hear.
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

// TestVIPWithSNATIsAnnouncedWithItsLeases: not before the tables have them, and not when no manager says that they are the newest.
func TestVIPWithSNATIsAnnouncedWithItsLeases(t *testing.T) {
	w := newLeasedWorld(t)
	w.announces("before anybody spoke of SNAT", snatVIP, plainVIP)
	w.leases.Begin()
	w.hear(&apiv1.SnatLeases{Snapshot: true, Configured: true, Vips: w.vip(snatDIP)})
	w.announces("half of the snapshot is there", plainVIP)
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: 1})
	w.announces("the leases are there", snatVIP, plainVIP)

	w.clock.Advance(DefaultLeaseFor)
	w.agent.Speak(context.Background())
	w.announces("as long as it may be silent", snatVIP, plainVIP)
	w.clock.Advance(time.Millisecond)
	w.agent.Speak(context.Background())
	w.announces("no manager was heard for too long", plainVIP)
	if err := w.agent.Status().GetError(); !strings.Contains(err, "no manager told of leases") {
		t.Errorf("status says %q", err)
	}
	w.leases.Begin()
	w.hear(&apiv1.SnatLeases{Snapshot: true, Configured: true, Vips: w.vip(snatDIP)})
	w.announces("half of the next snapshot is there", plainVIP)
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: 2})
	w.announces("a manager is back", snatVIP, plainVIP)
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: 2, Configured: true})
	w.announces("the service has no snat any more", snatVIP, plainVIP)
	w.clock.Advance(time.Hour)
	w.agent.Speak(context.Background())
	w.announces("and nobody is needed for it", snatVIP, plainVIP)
	if err := w.agent.Status().GetError(); err != "" {
		t.Errorf("status says %q", err)
	}
}

// TestAgentStartsWithWordsOfTheOneBefore: its VIPs stay announced as they would be had it not ended.
func TestAgentStartsWithWordsOfTheOneBefore(t *testing.T) {
	w := newLeasedWorld(t)
	w.snapshot()
	w.begin()
	w.announces("with words of the agent before", snatVIP, plainVIP)
	w.leases.Begin()
	w.hear(&apiv1.SnatLeases{Snapshot: true, Configured: true, Vips: w.vip(snatDIP)})
	w.announces("while a snapshot comes", snatVIP, plainVIP)
	w.clock.Advance(DefaultLeaseFor + 1)
	w.agent.Speak(context.Background())
	w.announces("when it does not end", plainVIP)
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: 1})
	w.announces("when it is there", snatVIP, plainVIP)

	// One that was away for long has words that may be others' by now.
	w.clock.Advance(DefaultLeaseFor + 1)
	w.begin()
	w.announces("with words that were the newest too long ago", plainVIP)

	// What the agent before had and no manager speaks of any more is forgotten.
	w.leases.Begin()
	w.hear(&apiv1.SnatLeases{Snapshot: true, Configured: true, Revision: 2})
	w.announces("the service has no snat any more", snatVIP, plainVIP)
	if held := w.data.HeldSNAT(); len(held) != 0 {
		t.Errorf("the tables have %v", held)
	}
}

// TestAgentStartsWithoutWords: on a machine that was down nothing is known but the names of VIPs with SNAT; without a manager those
// are not announced.
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
	w.announces("without words", plainVIP)
	w.snapshot()
	w.announces("with the leases", snatVIP, plainVIP)
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: 2, Configured: true})
	if text, err := os.ReadFile(file); err != nil || len(text) != 0 {
		t.Errorf("the file says %q, %v", text, err)
	}
	if err := w.leases.Remember(t.TempDir()); err == nil {
		t.Error("a directory was read as the file")
	}
}

// TestTablesWithoutRoom: a VIP whose leases the tables cannot take is withheld, and told; all else goes on, and it comes when there is
// room.
func TestTablesWithoutRoom(t *testing.T) {
	w := newLeasedWorld(t)
	w.data.Fail(snat.VIP{Addr: netip.MustParseAddr(snatVIP)}, errors.New("set SNAT of 203.0.113.10: no room"))
	w.snapshot()
	w.announces("there is no room", plainVIP)
	if err := w.agent.Status().GetError(); !strings.Contains(err, "no room") {
		t.Errorf("status says %q", err)
	}
	var rep apiv1.NodeReport
	if !w.leases.Say(&rep) || rep.GetSnatAck().GetRevision() != w.rev {
		t.Errorf("acknowledged %v: other VIPs must not wait for this one", rep.GetSnatAck())
	}
	w.data.Fail(snat.VIP{Addr: netip.MustParseAddr(snatVIP)}, nil)
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: w.rev})
	w.announces("there is room", snatVIP, plainVIP)
	if _, ok := w.data.DIP(snat.VIP{Addr: netip.MustParseAddr(snatVIP)}, 1024); ok {
		t.Error("a port is somebody's")
	}
}

// TestLeasesAreAcknowledgedWhenTheyServe: not while packets meet the tables of an agent before.
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
	w.apply(planOf([]string{snatVIP, plainVIP}, snatDIP)) // with which they begin to serve
	select {
	case <-w.leases.Says():
	default:
		t.Fatal("nobody was told that there is something to say")
	}
	if !w.leases.Say(&rep) || rep.GetSnatAck().GetRevision() != w.rev {
		t.Errorf("acknowledged %v", rep.GetSnatAck())
	}
}

// TestServersGetThePathsMTU: as members of endpoints do.
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

// TestTraceNamesTheServer: of a packet that no endpoint takes.
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
