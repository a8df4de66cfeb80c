package gobgp

import (
	"net/netip"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/api"

	"github.com/shuntlb/shunt/internal/bgp"
)

// Session timers. Hold time 9 s is the smallest multiple of the usual 3 s keepalive; BFD is faster where configured.
const (
	holdTime       = 9 // seconds
	keepalive      = 3 // seconds
	connectRetry   = 2 // seconds
	idleAfterReset = 1 // second
)

// BFD timers used where a peer's are zero. GoBGP does not follow the peer's timers (RFC 5880 section 6.8.4): asking
// for less than the router sends would take the session down.
const (
	bfdTransmit   = 100 * time.Millisecond
	bfdReceive    = time.Second
	bfdMultiplier = 3
)

// apiPeer is GoBGP's form of a peer: both unicast families over one session.
func apiPeer(p bgp.Peer) *api.Peer {
	out := &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: p.Address.String(),
			PeerAsn:         p.ASN,
			AuthPassword:    p.Password,
		},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime: holdTime, KeepaliveInterval: keepalive,
			ConnectRetry: connectRetry, IdleHoldTimeAfterReset: idleAfterReset,
		}},
		AfiSafis: []*api.AfiSafi{
			unicast(api.Family_AFI_IP),
			unicast(api.Family_AFI_IP6),
		},
	}
	if p.BFD != nil {
		out.Bfd = bfdConfig(*p.BFD)
	}
	return out
}

func unicast(afi api.Family_Afi) *api.AfiSafi {
	return &api.AfiSafi{Config: &api.AfiSafiConfig{
		Family: &api.Family{Afi: afi, Safi: api.Family_SAFI_UNICAST}, Enabled: true,
	}}
}

func bfdConfig(b bgp.BFD) *api.BfdPeerConfig {
	if b.Transmit <= 0 {
		b.Transmit = bfdTransmit
	}
	if b.Receive <= 0 {
		b.Receive = bfdReceive
	}
	if b.Multiplier == 0 {
		b.Multiplier = bfdMultiplier
	}
	return &api.BfdPeerConfig{
		Enabled:                  true,
		DesiredMinimumTxInterval: uint32(b.Transmit.Microseconds()),
		RequiredMinimumReceive:   uint32(b.Receive.Microseconds()),
		DetectionMultiplier:      b.Multiplier,
	}
}

// peerStatus reads GoBGP's view of a session.
func peerStatus(p *api.Peer) (bgp.PeerStatus, bool) {
	a, err := netip.ParseAddr(p.GetConf().GetNeighborAddress())
	if err != nil {
		return bgp.PeerStatus{}, false
	}
	st := bgp.PeerStatus{
		Address: a,
		State:   enumWord(p.GetState().GetSessionState().String(), "SESSION_STATE_"),
	}
	if p.GetBfd().GetEnabled() {
		st.BFD = "down"
		if p.GetState().GetBfdState().GetSessionState() == api.BfdSessionState_BFD_SESSION_STATE_UP {
			st.BFD = "up"
		}
	}
	return st, true
}

// enumWord turns "SESSION_STATE_OPENSENT" into "opensent".
func enumWord(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }
