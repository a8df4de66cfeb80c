package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/shuntlb/shunt/internal/lb"
)

// NodeItem is the key of the one item that tells a node about itself.
const NodeItem = "node"

// FormatKey writes an endpoint's key as "vni/vip/protocol/port".
func FormatKey(k lb.EndpointKey) string {
	return fmt.Sprintf("%d/%s/%s/%d", k.VNI, k.VIP, k.Protocol, k.Port)
}

// ParseKey reads what FormatKey writes.
func ParseKey(s string) (lb.EndpointKey, error) {
	bad := fmt.Errorf("endpoint key: %q: must be VNI/VIP/PROTOCOL/PORT", s)
	parts := strings.Split(s, "/")
	if len(parts) != 4 {
		return lb.EndpointKey{}, bad
	}
	vni, err := strconv.ParseUint(parts[0], 10, 24)
	vip, vipErr := netip.ParseAddr(parts[1])
	protocol, wrong := lb.ParseProtocol(parts[2])
	port, portErr := strconv.ParseUint(parts[3], 10, 16)
	if err != nil || vipErr != nil || wrong != "" || portErr != nil {
		return lb.EndpointKey{}, bad
	}
	return lb.EndpointKey{VNI: uint32(vni), VIP: vip, Protocol: protocol, Port: uint16(port)}, nil
}

// EndpointItem is the item key "endpoint/vni/vip/protocol/port".
func EndpointItem(k lb.EndpointKey) string { return "endpoint/" + FormatKey(k) }

// BindingItem is the item key "binding/vni/outer/vip/protocol/port".
func BindingItem(k lb.EndpointKey, outer netip.Addr) string {
	return fmt.Sprintf("binding/%d/%s/%s/%s/%d", k.VNI, outer, k.VIP, k.Protocol, k.Port)
}

// KeyItem is the item key "key/id".
func KeyItem(id uint32) string { return fmt.Sprintf("key/%d", id) }

// CompareKeys orders endpoints by VNI, VIP, protocol, port.
func CompareKeys(a, b lb.EndpointKey) int {
	return cmp.Or(cmp.Compare(a.VNI, b.VNI), a.VIP.Compare(b.VIP), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// CompareBindings orders bindings by endpoint and outer destination.
func CompareBindings(a, b Binding) int {
	return cmp.Or(CompareKeys(a.Key, b.Key), a.Outer.Compare(b.Outer))
}
