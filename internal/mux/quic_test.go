package mux

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/cid"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// TestWantedQUIC converts the connection id settings of plans to the tables' form.
func TestWantedQUIC(t *testing.T) {
	keys := []plan.CIDKey{{Epoch: 6, Key: [16]byte{6}}, {Epoch: 7, Key: [16]byte{7}}}
	for _, c := range []struct {
		name     string
		affinity string
		quic     *lb.QUIC
		keys     []plan.CIDKey
		want     *dataplane.MuxQUIC
	}{
		{"not QUIC", lb.AffinityFlow, nil, keys, nil},
		{"no ids", lb.AffinityFlow, &lb.QUIC{Format: lb.QUICNone}, nil, nil},
		{"quiclb", lb.AffinityCookie, &lb.QUIC{Format: lb.QUICLB, ServerIDLength: 3, NonceLength: 13}, keys, &dataplane.MuxQUIC{
			Format: cid.QUICLB, Configs: []cid.Config{{ID: 6, Key: [16]byte{6}, ServerID: 3, Nonce: 13}, {ID: 0, Key: [16]byte{7}, ServerID: 3, Nonce: 13}},
		}},
		{"without keys yet", lb.AffinityCookie, &lb.QUIC{Format: lb.QUICLB, ServerIDLength: 3, NonceLength: 13}, nil, &dataplane.MuxQUIC{Format: cid.QUICLB}},
		{"in clear", lb.AffinityCookie, &lb.QUIC{Format: lb.QUICLBPlain, ServerIDLength: 2, NonceLength: 6}, nil, &dataplane.MuxQUIC{
			Format: cid.Plain, Configs: []cid.Config{{ServerID: 2, Nonce: 6}},
		}},
		{"msquic", lb.AffinityCookie, &lb.QUIC{Format: lb.QUICMsquic}, nil, &dataplane.MuxQUIC{Format: cid.MSQUIC}},
		{"mvfst", lb.AffinityCookie, &lb.QUIC{Format: lb.QUICMvfst}, nil, &dataplane.MuxQUIC{Format: cid.MVFST}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := wantedQUIC(plan.Endpoint{Affinity: c.affinity, QUIC: c.quic}, c.keys)
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, expected %+v", got, c.want)
			}
			if got != nil {
				if err := got.Check(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestLingeringKeepsItsKeys: a VIP that left the plan is forwarded by its connection ids during its
// grace period.
func TestLingeringKeepsItsKeys(t *testing.T) {
	vips := []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("203.0.113.11"), netip.MustParseAddr("203.0.113.12")}
	of := func(i int, epoch uint32) plan.CIDKeys {
		return plan.CIDKeys{VIP: vips[i], Keys: []plan.CIDKey{{Epoch: epoch}}, Mint: epoch}
	}
	before := plan.Plan{CIDs: []plan.CIDKeys{of(0, 1), of(1, 2), of(2, 3)}}
	l := lingering{until: map[netip.Addr]time.Time{vips[0]: {}, vips[2]: {}}}
	p := plan.Plan{CIDs: []plan.CIDKeys{of(1, 4), of(2, 5)}}
	l.keep(&p, before)
	if want := []plan.CIDKeys{of(0, 1), of(1, 4), of(2, 5)}; !reflect.DeepEqual(p.CIDs, want) {
		t.Errorf("%+v, expected %+v", p.CIDs, want)
	}
	if got := plan.OtherCIDs(before.CIDs, p.CIDs); !reflect.DeepEqual(got, vips[1:]) {
		t.Errorf("%v have other keys", got)
	}
}
