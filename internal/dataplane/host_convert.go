package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// hostTables are the contents of the host's maps.
type hostTables struct {
	config   hostHostConfig
	sources  map[hostTunnelSource]uint32       // tunnel sources beyond those of config
	bindings map[hostBindingKey]hostBinding    // of single ports and of all protocols
	ranges   map[hostBindingPrefix]hostBinding // the parts of ranges
	outers   map[[16]byte]hostHostTunnel
	owned    map[hostOwnedKey]hostOwned
	networks map[hostNetworkPrefix]hostNetworkKind
	peers    map[[16]byte]hostRepairUse // that are not tunnel sources, but send on what they do not know
	repairs  []*HostRepair
	// unrepaired is how many repairs were left out, because the hosts that they name do not fit.
	unrepaired int
	inside     map[hostHostSnatPrefix]uint32 // what servers' connections go to without SNAT
	spreads    []plannedBinding              // of packets from switches: without counters
	spreadOf   []*HostSpread
	cookies    map[cookieVIP]bakedKeySet
	// plans are the bindings as the plan has them, with the keys they have above.
	plans []plannedBinding
}

// plannedBinding is a binding and its places in the tables: one key, or the prefixes of a range.
type plannedBinding struct {
	plan.Binding
	key      hostBindingKey
	prefixes []hostBindingPrefix
	index    uint32 // of its counter
}

// Sizes of headers in bytes: what encapsulation and the inner packet need of the MTU.
const (
	ip4HeaderLen = 20
	ip6HeaderLen = 40
	tcpHeaderLen = 20
	gueHeaderLen = 24 // with its UDP header
)

// wantedTables turns a state into map contents; indices of counters are not set.
func wantedTables(s HostState) (hostTables, error) {
	t := hostTables{
		sources:  map[hostTunnelSource]uint32{},
		bindings: map[hostBindingKey]hostBinding{},
		ranges:   map[hostBindingPrefix]hostBinding{},
		outers:   map[[16]byte]hostHostTunnel{},
		owned:    map[hostOwnedKey]hostOwned{},
		networks: map[hostNetworkPrefix]hostNetworkKind{},
		peers:    map[[16]byte]hostRepairUse{}, spreadOf: s.Spreads,
		inside: map[hostHostSnatPrefix]uint32{}, cookies: map[cookieVIP]bakedKeySet{},
	}
	if err := t.addCookies(s.Cookies); err != nil {
		return t, err
	}
	for _, p := range slices.Concat(snatNever, s.Inside) {
		if p.Addr().Is4() {
			t.inside[hostHostSnatPrefix{Bits: uint32(p.Bits()), AddrBe: binary.NativeEndian.Uint32(p.Masked().Addr().AsSlice())}] = 1
		}
	}
	// Old and new ones are there together.
	if len(t.inside) > hostMaxInside/2 {
		return t, fmt.Errorf("%d prefixes that connections go to without SNAT: at most %d fit", len(t.inside), hostMaxInside/2)
	}
	if err := t.accept(s.TunnelSources, s.Switches); err != nil {
		return t, err
	}
	if err := t.guard(s); err != nil {
		return t, err
	}
	t.accompany(s.Repairs)
	places := len(s.Bindings)
	for _, sp := range s.Spreads {
		places += len(sp.Addresses)
	}
	if places > hostMaxBindings {
		return t, noRoom(TableBindings, "%d bindings, those of packets from switches included: at most %d fit", places, hostMaxBindings)
	}
	if err := handshakesFit(s.Bindings, int(hostCOCoLimitLIMIT_CO_ENDPOINTS)); err != nil {
		return t, err
	}
	for _, b := range s.Bindings {
		if err := t.add(b, s.MTU); err != nil {
			return t, err
		}
	}
	for _, sp := range s.Spreads {
		t.spread(sp)
	}
	if len(t.ranges) > hostMaxPrefixes {
		return t, noRoom(TableBindingParts, "%d parts of port ranges: at most %d fit", len(t.ranges), hostMaxPrefixes)
	}
	return t, nil
}

// accompany takes in repairs with the hosts that they name, but for those whose hosts do not fit.
func (t *hostTables) accompany(repairs []*HostRepair) {
	for _, r := range repairs {
		more := 0
		for _, a := range r.Peers {
			if _, known := t.peers[a.As16()]; !known {
				more++
			}
		}
		if len(t.peers)+more > hostMaxPeers {
			t.unrepaired++
			continue
		}
		for _, a := range r.Peers {
			t.peers[a.As16()] = hostRepairUseREPAIR_AWAY
		}
		t.repairs = append(t.repairs, r)
	}
}

// snatNever is what nobody is reached by from elsewhere: this network, loopback, link-local, groups and the rest (RFC 6890, RFC 5771).
var snatNever = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/3"),
}

// Limits of bpf/abi.h.
const (
	// The last index is that of flows with leased ports.
	hostMaxBindings = int(snatBinding)
	hostMaxPrefixes = int(hostHostLimitLIMIT_BINDING_PREFIXES)
	hostMaxPeers    = int(hostRepairLimitLIMIT_PEERS)
	hostMaxSources  = int(hostHostLimitLIMIT_TUNNEL_SOURCES) / 2
	hostMaxNetworks = int(hostHostLimitLIMIT_NETWORKS) / 2
	hostMaxSenders  = int(hostHostLimitLIMIT_SENDERS) / 2

	noTunnelMember = plan.NoMember
)

// add adds one binding.
func (t *hostTables) add(b plan.Binding, mtu uint32) error {
	if err := checkBinding(b); err != nil {
		return fmt.Errorf("binding %s: %w", bindingName(b), err)
	}
	p := plannedBinding{Binding: b, key: keyOfBinding(&b)}
	value := hostBinding{Member: b.Member, Dip: b.DIP.As16(), PortBe: be16(b.DIPPort), Mss: clampMSS(mtu, b)}
	if b.Rewrite {
		value.Rewrite = 1
	} else {
		value.PortBe = 0
		t.own(b, value.Mss)
	}
	if !t.place(&p, value) {
		return fmt.Errorf("binding %s: outer destination %s is another member's already", bindingName(b), b.Outer)
	}
	if b.TunnelMember() == plan.NoMember {
		t.outers[p.key.OuterDst] |= hostHostTunnelHOST_TUNNEL_IPIP
	} else {
		t.outers[p.key.OuterDst] |= hostHostTunnelHOST_TUNNEL_GUE
	}
	t.plans = append(t.plans, p)
	return nil
}

// keyOfBinding is what packets find a binding by, but for the ports of a range.
func keyOfBinding(b *plan.Binding) hostBindingKey {
	return hostBindingKey{
		OuterDst: b.Outer.As16(), Vip: b.Key.VIP.As16(), Vni: b.Key.VNI, Member: b.TunnelMember(),
		PortBe: be16(b.Key.Port), Protocol: uint8(b.Key.Protocol),
	}
}

// place puts a binding where lookups find it; false: another has a place that it needs.
func (t *hostTables) place(p *plannedBinding, value hostBinding) bool {
	switch {
	case p.Key.Protocol == lb.AnyProtocol:
		p.key.PortBe = 0
		t.config.Flags |= uint32(hostHostFlagHOST_ANY)
	case p.Key.PortEnd != 0:
		t.config.Flags |= uint32(hostHostFlagHOST_RANGES)
		for _, key := range rangePrefixes(p.key, p.Key.Port, p.Key.PortEnd) {
			if _, taken := t.ranges[key]; taken {
				return false
			}
			t.ranges[key] = value
			p.prefixes = append(p.prefixes, key)
		}
		return true
	}
	if _, taken := t.bindings[p.key]; taken {
		return false
	}
	t.bindings[p.key] = value
	return true
}

// set makes index that of a placed binding's counter.
func (t *hostTables) set(p *plannedBinding, index uint32) {
	p.index = index
	for _, key := range p.prefixes {
		value := t.ranges[key]
		value.Index = index
		t.ranges[key] = value
	}
	if len(p.prefixes) == 0 {
		value := t.bindings[p.key]
		value.Index = index
		t.bindings[p.key] = value
	}
}

// repair makes bindings name the records of their endpoints, by number.
func (t *hostTables) repair(numbers map[repairName]uint32) {
	if len(numbers) == 0 {
		return
	}
	t.nameRecords(t.plans, numbers, false)
	t.nameRecords(t.spreads, numbers, true)
}

// nameRecords makes some bindings name their records.
func (t *hostTables) nameRecords(of []plannedBinding, numbers map[repairName]uint32, spread bool) {
	for i := range of {
		p := &of[i]
		number := numbers[repairName{p.Key, spread}]
		if number == 0 {
			continue
		}
		for _, key := range p.prefixes {
			value := t.ranges[key]
			value.Repair = number
			t.ranges[key] = value
		}
		if len(p.prefixes) == 0 {
			value := t.bindings[p.key]
			value.Repair = number
			t.bindings[p.key] = value
		}
	}
}

// own notes that servers here own the VIP of a TCP binding; the least of several MSS values holds. Ranges of one VIP
// share an entry.
func (t *hostTables) own(b plan.Binding, mss uint16) {
	k := hostOwnedKey{Vip: b.Key.VIP.As16(), Vni: b.Key.VNI, PortBe: be16(b.Key.Port), Protocol: uint8(b.Key.Protocol)}
	if b.Key.PortEnd != 0 || b.Key.Protocol == lb.AnyProtocol {
		k.PortBe = 0
	}
	if b.Key.Protocol == lb.AnyProtocol {
		k.Protocol = uint8(lb.TCP)
	}
	if have, ok := t.owned[k]; !ok || mss < have.Mss {
		t.owned[k] = hostOwned{Mss: mss}
	}
}

func checkBinding(b plan.Binding) error {
	wide := b.Key.Protocol == lb.AnyProtocol || b.Key.PortEnd != 0
	switch {
	case b.Key.VNI != 0:
		return fmt.Errorf("vni: %d: not supported by this version, must be 0", b.Key.VNI)
	case b.Key.Protocol != lb.TCP && b.Key.Protocol != lb.UDP && b.Key.Protocol != lb.AnyProtocol:
		return fmt.Errorf("protocol: %d: must be tcp, udp or any", uint8(b.Key.Protocol))
	case !b.Key.VIP.IsValid() || !b.DIP.IsValid() || !b.Outer.IsValid():
		return fmt.Errorf("vip, dip and outer must be addresses")
	case b.Key.VIP.Is4() != b.DIP.Is4():
		return fmt.Errorf("dip: %s: must be of the VIP's family", b.DIP)
	case b.Encap != "" && b.Encap != lb.EncapIPIP && b.Encap != lb.EncapGUE:
		return fmt.Errorf("encap: %q: must be %s or %s", b.Encap, lb.EncapIPIP, lb.EncapGUE)
	case b.TunnelMember() == plan.NoMember && b.Encap == lb.EncapGUE:
		return fmt.Errorf("member: %d: must be at most %d with gue", b.Member, plan.MaxMemberID)
	case b.Key.Protocol == lb.AnyProtocol && b.Key.Port != 0:
		return fmt.Errorf("port: %d: must be 0 with protocol any", b.Key.Port)
	case wide && b.DIPPort != 0:
		return fmt.Errorf("dip port: %d: must be 0 where packets keep their port", b.DIPPort)
	case b.Key.PortEnd != 0 && b.Key.PortEnd < b.Key.Port:
		return fmt.Errorf("ports: %d-%d: the last must not be below the first", b.Key.Port, b.Key.PortEnd)
	case b.Cookie && (b.Key.Protocol != lb.TCP || !b.Rewrite && wide):
		return fmt.Errorf("cookie: must be off but with tcp and, where the server owns the VIP, a single port")
	case b.Cookie && b.Member > maxMember(b):
		return fmt.Errorf("member: %d: must be at most %d with cookies", b.Member, maxMember(b))
	case !wide && (b.Key.Port == 0 || b.Rewrite && b.DIPPort == 0):
		return fmt.Errorf("port: 0: must be 1 to 65535")
	}
	return nil
}

// maxMember is the largest member id that a cookie of the binding names: one that is stamped, or one in the clock of a server that owns the VIP (COEndpoint).
func maxMember(b plan.Binding) uint16 {
	if b.Rewrite {
		return cookie.MaxID
	}
	return cookie.MaxShortID
}

func bindingName(b plan.Binding) string {
	return fmt.Sprintf("%s %s:%s at %s", b.Key.Protocol, b.Key.VIP, lb.PortsText(b.Key.Port, b.Key.PortEnd), b.DIP)
}

// clampMSS is what one TCP segment may carry so that it fits the MTU inside the tunnel; 0 without an MTU.
func clampMSS(mtu uint32, b plan.Binding) uint16 {
	header := func(a netip.Addr) int {
		if a.Is4() {
			return ip4HeaderLen
		}
		return ip6HeaderLen
	}
	mss := int(mtu) - header(b.Outer) - header(b.Key.VIP) - tcpHeaderLen
	if b.Encap == lb.EncapGUE {
		mss -= gueHeaderLen
	}
	return uint16(max(0, min(mss, 65535)))
}

// noSources is the configuration that accepts nothing: a family without a prefix matches nothing.
func noSources() hostHostConfig {
	return hostHostConfig{AbiVersion: uint32(hostHostLimitLIMIT_HOST_ABI_VERSION), Source4Be: 1, Source6Be: [2]uint64{1, 1}}
}

// accept takes in the tunnel sources, those of switches as such: the first of each family goes into the configuration as value and mask, so that
// where there is one Network nothing is looked up.
func (t *hostTables) accept(sources, switches []netip.Prefix) error {
	t.config = noSources()
	more := func(p netip.Prefix, of hostHostSource) {
		key := hostTunnelSource{Bits: uint32(p.Bits()), Addr: p.Addr().As16()}
		if p.Addr().Is4() {
			key.Bits += 96
		}
		t.sources[key] = uint32(of)
		t.config.Flags |= uint32(hostHostFlagHOST_SOURCES)
	}
	for _, p := range switches {
		more(p.Masked(), hostHostSourceHOST_SOURCE_SWITCH)
	}
	seen := map[bool]bool{}
	for _, p := range sources {
		p = p.Masked()
		is4 := p.Addr().Is4()
		if seen[is4] {
			more(p, hostHostSourceHOST_SOURCE_MUX)
			continue
		}
		seen[is4] = true
		addr, mask := p.Addr().AsSlice(), prefixMask(p)
		if is4 {
			t.config.Source4Be, t.config.Source4MaskBe = binary.NativeEndian.Uint32(addr), binary.NativeEndian.Uint32(mask)
			continue
		}
		for i := range t.config.Source6Be {
			t.config.Source6Be[i], t.config.Source6MaskBe[i] = binary.NativeEndian.Uint64(addr[8*i:]), binary.NativeEndian.Uint64(mask[8*i:])
		}
	}
	if len(t.sources) > hostMaxSources {
		return fmt.Errorf("%d tunnel sources beyond one of each family: at most %d fit", len(t.sources), hostMaxSources)
	}
	return nil
}

// prefixMask is the netmask in network byte order.
func prefixMask(p netip.Prefix) []byte {
	mask := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// be16 stores a port so that its bytes lie in network order.
func be16(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}
