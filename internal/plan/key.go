package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/shuntlb/shunt/internal/lb"
)

// NodeItem is the key of the item that describes the node itself.
const NodeItem = "node"

// FormatKey returns an endpoint's key as "vni/vip/protocol/ports"; ports is "80", "8000-8100" or
// "*".
func FormatKey(k lb.EndpointKey) string {
	return fmt.Sprintf("%d/%s/%s/%s", k.VNI, k.VIP, k.Protocol, lb.PortsText(k.Port, k.PortEnd))
}

// ParseKey parses the output of FormatKey.
func ParseKey(s string) (lb.EndpointKey, error) {
	bad := fmt.Errorf("endpoint key: %q: must be VNI/VIP/PROTOCOL/PORTS", s)
	parts := strings.Split(s, "/")
	if len(parts) != 4 {
		return lb.EndpointKey{}, bad
	}
	vni, err := strconv.ParseUint(parts[0], 10, 24)
	vip, vipErr := netip.ParseAddr(parts[1])
	protocol, wrong := lb.ParseProtocol(parts[2])
	port, end, wrongPorts := lb.ParsePorts(parts[3])
	if err != nil || vipErr != nil || wrong != "" || wrongPorts != "" {
		return lb.EndpointKey{}, bad
	}
	return lb.EndpointKey{VNI: uint32(vni), VIP: vip, Protocol: protocol, Port: port, PortEnd: end}, nil
}

// EndpointItem returns the item key "endpoint/vni/vip/protocol/ports".
func EndpointItem(k lb.EndpointKey) string { return "endpoint/" + FormatKey(k) }

// BindingItem returns the item key "binding/vni/outer/vip/protocol/ports/member", with the member
// because members may share an outer destination.
func BindingItem(k lb.EndpointKey, outer netip.Addr, member uint16) string {
	return fmt.Sprintf("binding/%d/%s/%s/%s/%s/%d", k.VNI, outer, k.VIP, k.Protocol, lb.PortsText(k.Port, k.PortEnd), member)
}

// TunnelMember returns the member id that the tunnel carries in addition to the outer destination:
// the id with GUE, NoMember with IPIP.
func (b *Binding) TunnelMember() uint16 {
	if b.Encap == lb.EncapGUE {
		return b.Member
	}
	return NoMember
}

// tunnelName is everything in a packet's tunnel that identifies the member of an endpoint.
type tunnelName struct {
	outer  netip.Addr
	member uint16
}

func (b *Binding) tunnelName() tunnelName { return tunnelName{b.Outer, b.TunnelMember()} }

// RepairPrefix is the prefix of the keys of repair items.
const RepairPrefix = "repair/"

// RepairItem returns the item key "repair/vni/vip/protocol/ports".
func RepairItem(k lb.EndpointKey) string { return RepairPrefix + FormatKey(k) }

// CookiesItem returns the item key "cookies/vni/vip".
func CookiesItem(vni uint32, vip netip.Addr) string { return fmt.Sprintf("cookies/%d/%s", vni, vip) }

// CIDsItem returns the item key "cids/vni/vip".
func CIDsItem(vni uint32, vip netip.Addr) string { return fmt.Sprintf("cids/%d/%s", vni, vip) }

// ServiceItem returns the item key "service/name".
func ServiceItem(name string) string { return "service/" + name }

// SourcesItem returns the item key "sources/policy".
func SourcesItem(policy string) string { return "sources/" + policy }

// KeyItem returns the item key "key/id".
func KeyItem(id uint32) string { return fmt.Sprintf("key/%d", id) }

// CompareKeys orders endpoints by VNI, VIP, protocol, ports.
func CompareKeys(a, b lb.EndpointKey) int {
	return cmp.Or(
		cmp.Compare(a.VNI, b.VNI), a.VIP.Compare(b.VIP), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.PortEnd, b.PortEnd),
	)
}

// CompareBindings orders bindings by endpoint, outer destination and member.
func CompareBindings(a, b Binding) int {
	return cmp.Or(CompareKeys(a.Key, b.Key), a.Outer.Compare(b.Outer), cmp.Compare(a.Member, b.Member))
}

// CompareSources orders lists by policy.
func CompareSources(a, b Sources) int { return cmp.Compare(a.Policy, b.Policy) }

// CompareServices orders services by name.
func CompareServices(a, b Service) int { return cmp.Compare(a.Name, b.Name) }
