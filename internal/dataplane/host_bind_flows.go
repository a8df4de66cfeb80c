package dataplane

import (
	"fmt"

	"github.com/shuntlb/shunt/internal/lb"
)

// bindFlowsLocked writes what flows have from the wanted bindings, which have their indices but are not in the tables yet. Those that do not
// rewrite have no flows, but servers that are metered.
func (h *Host) bindFlowsLocked(want hostTables) error {
	for i := range want.plans {
		p := &want.plans[i]
		if err := h.bindFlow(p.index, p.DIP.As16(), p.Key.VIP.As16(), p.Idle.Or(lb.DefaultHostIdle), h.flows.cookies.of(&p.Binding)); err != nil {
			return fmt.Errorf("binding %s: %w", bindingName(p.Binding), ofVIP(err, p.Key))
		}
	}
	return nil
}

// bindFlow writes what flows have from the binding of an index; cookie is of enum binding_cookie.
func (h *Host) bindFlow(index uint32, dip, vip [16]byte, idle lb.HostIdle, cookie uint32) error {
	b := hostBindingFlow{Cookie: cookie}
	var err error
	if b.Dip, err = h.flows.addrs.number(dip); err != nil {
		return err
	}
	if b.Vip, err = h.flows.addrs.number(vip); err != nil {
		return err
	}
	b.Idle = flowIdles(idle)
	if h.flows.binding[index] != b {
		h.flows.binding[index] = b
	}
	return nil
}

// bindSNAT writes what flows have that servers open themselves. An ICMP echo is one of the protocols without ports.
func (h *Host) bindSNAT() {
	idle := lb.DefaultHostIdle
	idle.Other = snatEchoIdle
	h.flows.binding[snatBinding] = hostBindingFlow{Idle: flowIdles(idle)}
}

// flowIdles are idle times by class, in ticks.
func flowIdles(idle lb.HostIdle) (out [hostIdleClassIDLE_CLASSES]uint32) {
	out[hostIdleClassIDLE_ESTABLISHED] = idleTicks(idle.Established)
	out[hostIdleClassIDLE_OPENING] = idleTicks(idle.Opening)
	out[hostIdleClassIDLE_CLOSING] = idleTicks(idle.Closing)
	out[hostIdleClassIDLE_UDP] = idleTicks(idle.UDP)
	out[hostIdleClassIDLE_OTHER] = idleTicks(idle.Other)
	return out
}

// adoptBindings writes what flows have from pinned bindings, until the first plan says more: those of former versions had nothing.
func (h *Host) adoptBindings() error {
	adopt := func(key hostBindingKey, b hostBinding) error {
		if b.Spread != 0 {
			return nil
		}
		if h.flows.binding[b.Index].Dip != 0 {
			for _, addr := range [][16]byte{b.Dip, key.Vip} {
				if _, err := h.flows.addrs.number(addr); err != nil {
					return err
				}
			}
			return nil
		}
		return h.bindFlow(b.Index, b.Dip, key.Vip, lb.DefaultHostIdle, 0)
	}
	for key, b := range h.state.bindings {
		if err := adopt(key, b); err != nil {
			return err
		}
	}
	for key, b := range h.state.ranges {
		if err := adopt(key.Key, b); err != nil {
			return err
		}
	}
	return nil
}

// keepAddrsLocked lets the addresses of bindings that are gone leave, once no flow names them.
func (h *Host) keepAddrsLocked(want hostTables) {
	wanted := map[uint32]bool{}
	for i := range want.plans {
		p := &want.plans[i]
		wanted[h.flows.binding[p.index].Dip] = true
		wanted[h.flows.binding[p.index].Vip] = true
	}
	h.snat.numbers(wanted)
	h.flows.addrs.keep(wanted)
}
