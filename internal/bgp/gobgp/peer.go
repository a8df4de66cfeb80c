package gobgp

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/api"

	"github.com/shuntlb/shunt/internal/bgp"
)

// Session timers. A hold time of 9 s is the smallest multiple of the usual 3 s keepalive; BFD is
// faster where configured.
const (
	holdTime       = 9 // seconds
	keepalive      = 3 // seconds
	connectRetry   = 2 // seconds
	idleAfterReset = 1 // second
)

// BFD timers used where a peer's are zero. GoBGP does not adapt to the peer's timers (RFC 5880
// section 6.8.4): a receive interval shorter than the router's transmit interval would take the
// session down.
const (
	bfdTransmit   = 100 * time.Millisecond
	bfdReceive    = time.Second
	bfdMultiplier = 3
)

// Graceful restart (RFC 4724): a router that supports it keeps the routes when the speaker's
// process ends without closing the session, because the data plane continues to forward. This
// applies to a speaker that is replaced by another build, and to one that crashes.
const (
	// restartTime is how long routers wait for the next session. A speaker that crashed is started
	// again within two seconds.
	restartTime = 15 // seconds
	// deferralTime is how long a restarted speaker waits for the routes of routers that it does not
	// reach, before it sends its own to the others. GoBGP implements this; routers keep the
	// previous routes meanwhile.
	deferralTime = 3 // seconds
)

// apiPeer returns GoBGP's form of a peer: both unicast families over one session, with or without
// BFD. restarting: this is the first session of a speaker that replaced another one.
func apiPeer(p bgp.Peer, withBFD, restarting bool) *api.Peer {
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
		GracefulRestart: &api.GracefulRestart{
			Enabled: true, RestartTime: restartTime, DeferralTime: deferralTime, LocalRestarting: restarting,
		},
		AfiSafis: []*api.AfiSafi{
			unicast(api.Family_AFI_IP),
			unicast(api.Family_AFI_IP6),
		},
	}
	if p.TTLSecurity != 0 {
		out.TtlSecurity = &api.TtlSecurity{Enabled: true, TtlMin: 256 - uint32(p.TTLSecurity)}
	}
	if p.Multihop != 0 {
		out.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: uint32(p.Multihop)}
	}
	if p.BFD != nil && withBFD {
		out.Bfd = bfdConfig(*p.BFD)
	}
	return out
}

func unicast(afi api.Family_Afi) *api.AfiSafi {
	return &api.AfiSafi{
		Config: &api.AfiSafiConfig{
			Family: &api.Family{Afi: afi, Safi: api.Family_SAFI_UNICAST}, Enabled: true,
		},
		MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}},
	}
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

// peerStatus converts GoBGP's state of a session.
func peerStatus(p *api.Peer) (bgp.PeerStatus, bool) {
	a, err := netip.ParseAddr(p.GetConf().GetNeighborAddress())
	if err != nil {
		return bgp.PeerStatus{}, false
	}
	st := bgp.PeerStatus{
		Address: a,
		State:   enumWord(p.GetState().GetSessionState().String(), "SESSION_STATE_"),
	}
	if p.GetBfd().GetEnabled() && p.GetState().GetBfdState().GetSessionState() == api.BfdSessionState_BFD_SESSION_STATE_UP {
		st.BFD = "up"
	}
	if p.GetState().GetSessionState() == api.PeerState_SESSION_STATE_ESTABLISHED {
		st.GracefulRestart = slices.ContainsFunc(p.GetState().GetRemoteCap(), func(c *api.Capability) bool { return c.GetGracefulRestart() != nil })
	}
	return st, true
}

// enumWord turns "SESSION_STATE_OPENSENT" into "opensent".
func enumWord(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }
