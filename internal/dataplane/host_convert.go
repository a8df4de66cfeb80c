package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// hostTables are the contents of the host's maps.
type hostTables struct {
	config   hostHostConfig
	bindings map[hostBindingKey]hostBinding
	outers   map[[16]byte]uint32
	owned    map[hostOwnedKey]hostOwned
	// plans are the bindings as the plan has them.
	plans map[hostBindingKey]plan.Binding
}

// Sizes of headers in bytes: what encapsulation and the inner packet need of the MTU.
const (
	ip4HeaderLen = 20
	ip6HeaderLen = 40
	tcpHeaderLen = 20
)

// wantedTables turns a state into map contents; indices of counters are not set.
func wantedTables(s HostState) (hostTables, error) {
	t := hostTables{
		bindings: map[hostBindingKey]hostBinding{},
		outers:   map[[16]byte]uint32{},
		owned:    map[hostOwnedKey]hostOwned{},
		plans:    map[hostBindingKey]plan.Binding{},
	}
	var err error
	if t.config, err = hostConfig(s.TunnelSources); err != nil {
		return t, err
	}
	if len(s.Bindings) > hostMaxBindings {
		return t, fmt.Errorf("%d bindings: at most %d fit", len(s.Bindings), hostMaxBindings)
	}
	for _, b := range s.Bindings {
		if err := t.add(b, s.MTU); err != nil {
			return t, err
		}
	}
	return t, nil
}

// hostMaxBindings is LIMIT_BINDINGS of bpf/abi.h; a test compares them.
const hostMaxBindings = 1 << 16

// add adds one binding.
func (t *hostTables) add(b plan.Binding, mtu uint32) error {
	if err := checkBinding(b); err != nil {
		return fmt.Errorf("binding %s: %w", bindingName(b), err)
	}
	key := hostBindingKey{
		OuterDst: b.Outer.As16(), Vip: b.Key.VIP.As16(), Vni: b.Key.VNI,
		PortBe: be16(b.Key.Port), Protocol: uint8(b.Key.Protocol),
	}
	if _, twice := t.bindings[key]; twice {
		return fmt.Errorf("binding %s: outer destination %s is another member's already", bindingName(b), b.Outer)
	}
	value := hostBinding{Dip: b.DIP.As16(), PortBe: be16(b.DIPPort), Mss: clampMSS(mtu, b)}
	if b.Rewrite {
		value.Rewrite = 1
	} else {
		value.Dip, value.PortBe = b.DIP.As16(), key.PortBe
		t.own(key, value.Mss)
	}
	t.bindings[key] = value
	t.outers[key.OuterDst]++
	t.plans[key] = b
	return nil
}

// own notes that servers here own the VIP of a binding; the least of several MSS values holds.
func (t *hostTables) own(key hostBindingKey, mss uint16) {
	k := hostOwnedKey{Vip: key.Vip, Vni: key.Vni, PortBe: key.PortBe, Protocol: key.Protocol}
	if have, ok := t.owned[k]; !ok || mss < have.Mss {
		t.owned[k] = hostOwned{Mss: mss}
	}
}

func checkBinding(b plan.Binding) error {
	switch {
	case b.Key.VNI != 0:
		return fmt.Errorf("vni: %d: not supported by this version, must be 0", b.Key.VNI)
	case b.Key.Protocol != lb.TCP && b.Key.Protocol != lb.UDP:
		return fmt.Errorf("protocol: %d: must be tcp or udp", uint8(b.Key.Protocol))
	case !b.Key.VIP.IsValid() || !b.DIP.IsValid() || !b.Outer.IsValid():
		return fmt.Errorf("vip, dip and outer must be addresses")
	case b.Key.VIP.Is4() != b.DIP.Is4():
		return fmt.Errorf("dip: %s: must be of the VIP's family", b.DIP)
	case b.Key.Port == 0 || b.Rewrite && b.DIPPort == 0:
		return fmt.Errorf("port: 0: must be 1 to 65535")
	}
	return nil
}

func bindingName(b plan.Binding) string {
	return fmt.Sprintf("%s %s:%d at %s", b.Key.Protocol, b.Key.VIP, b.Key.Port, b.DIP)
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
	return uint16(max(0, min(mss, 65535)))
}

// hostConfig turns the tunnel sources into value and mask; a family without one matches nothing.
func hostConfig(sources []netip.Prefix) (hostHostConfig, error) {
	c := hostHostConfig{
		AbiVersion: uint32(hostLimitLIMIT_ABI_VERSION),
		Source4Be:  1,
		Source6Be:  [2]uint64{1, 1},
	}
	seen := map[bool]bool{}
	for _, p := range sources {
		p = p.Masked()
		is4 := p.Addr().Is4()
		if seen[is4] {
			return c, fmt.Errorf("tunnel source %s: at most one prefix of each family", p)
		}
		seen[is4] = true
		addr, mask := p.Addr().AsSlice(), prefixMask(p)
		if is4 {
			c.Source4Be, c.Source4MaskBe = binary.NativeEndian.Uint32(addr), binary.NativeEndian.Uint32(mask)
			continue
		}
		for i := range c.Source6Be {
			c.Source6Be[i], c.Source6MaskBe[i] = binary.NativeEndian.Uint64(addr[8*i:]), binary.NativeEndian.Uint64(mask[8*i:])
		}
	}
	return c, nil
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

// enumNames lists the values of an enum in BTF from 0 up: without prefix, in lower case; …_MAX is left out.
func enumNames(spec *ebpf.CollectionSpec, enum, prefix string) ([]string, error) {
	var e *btf.Enum
	if err := spec.Types.TypeByName(enum, &e); err != nil {
		return nil, fmt.Errorf("find enum %s in BTF: %w", enum, err)
	}
	names := make([]string, len(e.Values)-1)
	for _, v := range e.Values {
		if int(v.Value) < len(names) {
			names[v.Value] = strings.ToLower(strings.TrimPrefix(v.Name, prefix))
		}
	}
	return names, nil
}
