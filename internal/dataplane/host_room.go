package dataplane

import (
	"errors"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/fit"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// Tables of a host that a plan may be too large for, by the names that hosts report them by.
const (
	// TableBindings has a place for each binding, and one for each endpoint and own address where there are switches.
	TableBindings = "bindings"
	// TableBindingParts has the blocks of ports that port ranges are cut into.
	TableBindingParts = "binding_parts"
	// TableCookieKeys has the keys of each VIP whose cookies the host stamps.
	TableCookieKeys = "cookie_keys"
	// TableFlowAddresses has the DIPs and VIPs of bindings, and those that flows of former bindings name.
	TableFlowAddresses = "flow_addresses"
	// TableHandshakes has the endpoints whose TCP handshakes the host makes.
	TableHandshakes = "handshakes"
	// TableSNATServers has the servers whose connections leave with a VIP.
	TableSNATServers = "snat_servers"
	// TableSNATRanges has the port ranges of these servers.
	TableSNATRanges = "snat_ranges"
)

// hostCapacity is how much the tables of a host take.
func hostCapacity() map[string]uint64 {
	return map[string]uint64{
		TableBindings: uint64(hostMaxBindings), TableBindingParts: uint64(hostMaxPrefixes), TableCookieKeys: uint64(hostMaxCookies),
		TableFlowAddresses: uint64(hostHostLimitLIMIT_FLOW_ADDRS) - 1, TableHandshakes: uint64(hostCOCoLimitLIMIT_CO_ENDPOINTS),
	}
}

// Capacity implements HostTables.
func (h *Host) Capacity() map[string]uint64 { return hostCapacity() }

// Has implements HostTables.
func (h *Host) Has(b *plan.Binding) bool {
	want := hostTables{bindings: map[hostBindingKey]hostBinding{}, ranges: map[hostBindingPrefix]hostBinding{}}
	p := plannedBinding{Binding: *b, key: keyOfBinding(b)}
	want.place(&p, hostBinding{})
	h.mu.Lock()
	defer h.mu.Unlock()
	_, has := h.state.indexOf(&p)
	return has
}

// HostNeeds is what the bindings of a VIP take of the tables of a host. own is how many addresses switches reach the host by, 0 where there are
// no switches. cookies: the plan has keys of the VIP's cookies.
func HostNeeds(bindings []plan.Binding, own int, cookies bool) (out []fit.Need) {
	if len(bindings) == 0 {
		return nil
	}
	var parts uint64
	endpoints := map[lb.EndpointKey]bool{}
	handshakes := map[lb.EndpointKey]bool{}
	addrs := map[[16]byte]bool{}
	for i := range bindings {
		b := &bindings[i]
		addrs[b.DIP.As16()], addrs[b.Key.VIP.As16()] = true, true
		if makesHandshakes(b) {
			handshakes[b.Key] = true
		}
		n := portParts(b.Key)
		parts += n
		if !endpoints[b.Key] {
			endpoints[b.Key] = true
			parts += n * uint64(own)
		}
	}
	out = append(out, fit.Need{Table: TableBindings, Units: uint64(len(bindings) + own*len(endpoints))})
	if parts > 0 {
		out = append(out, fit.Need{Table: TableBindingParts, Units: parts})
	}
	if n := len(handshakes); n > 0 {
		out = append(out, fit.Need{Table: TableHandshakes, Units: uint64(n)})
	}
	if cookies {
		out = append(out, fit.Need{Table: TableCookieKeys, Units: 1})
	}
	for a := range addrs {
		out = append(out, fit.Need{Table: TableFlowAddresses, Units: 1, Of: a})
	}
	return out
}

// makesHandshakes reports whether the host makes the TCP handshakes of a binding.
func makesHandshakes(b *plan.Binding) bool { return b.Cookie && !b.Rewrite }

// handshakesFit reports a lack of room for the endpoints whose handshakes the host makes. HostCOTables refuses them one by one later.
func handshakesFit(bindings []plan.Binding, most int) error {
	endpoints := map[lb.EndpointKey]bool{}
	for i := range bindings {
		if makesHandshakes(&bindings[i]) {
			endpoints[bindings[i].Key] = true
		}
	}
	if len(endpoints) > most {
		return noRoom(TableHandshakes, "handshakes of %d endpoints: at most %d fit", len(endpoints), most)
	}
	return nil
}

// portParts is how many blocks the ports of an endpoint are cut into, 0 for a single port and for all protocols.
func portParts(k lb.EndpointKey) uint64 {
	if k.PortEnd == 0 || k.Protocol == lb.AnyProtocol {
		return 0
	}
	return uint64(lb.PortBlocks(k.Port, k.PortEnd))
}

// putBindings is putAll into a table of bindings; an error for lack of room names the table.
func putBindings[K, V comparable](m *ebpf.Map, table string, have, want map[K]V) error {
	err := putAll(m, have, want)
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return noRoom(table, "%s", err)
	}
	return err
}
