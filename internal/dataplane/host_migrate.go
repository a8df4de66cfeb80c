package dataplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"structs"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/plan"
)

// Version 1 of the host's maps had IP in IP only, and bindings of single ports only. Version 2 and it had flows in maps of the kernel
// (host_migrate_flows.go). Version 3 had no links on servers' devices, and none of the maps that came with them: there is nothing to
// take over, but its agents would leave those behind. Everything else is as it was.
const (
	hostABIFirst       = 1
	hostABISecond      = 2
	hostABIThird       = 3
	hostMapBindingsOne = "bindings"
)

// bindingKeyOne is the key of the map "bindings" of version 1.
type bindingKeyOne struct {
	_        structs.HostLayout
	OuterDst [16]uint8
	Vip      [16]uint8
	Vni      uint32
	PortBe   uint16
	Protocol uint8
	Rsv      uint8
}

// migrateHost copies the bindings of version 1 into the tables of this one. The old map stays until the programs that
// read it are replaced. What was copied already may be copied again.
func (h *Host) migrateHost() error {
	old, err := ebpf.LoadPinnedMap(filepath.Join(h.dir, hostMapBindingsOne), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open bindings of version %d: %w", hostABIFirst, err)
	}
	defer old.Close()
	all, err := readAll[bindingKeyOne, hostBinding](old)
	if err != nil {
		return err
	}
	for k, value := range all {
		key := hostBindingKey{OuterDst: k.OuterDst, Vip: k.Vip, Vni: k.Vni, PortBe: k.PortBe, Protocol: k.Protocol, Member: plan.NoMember}
		if err := h.objects.BoundMembers.Put(key, value); err != nil {
			return fmt.Errorf("copy bindings of version %d: %w", hostABIFirst, err)
		}
		if err := h.objects.Outers.Put(k.OuterDst, hostHostTunnelHOST_TUNNEL_IPIP); err != nil {
			return fmt.Errorf("copy bindings of version %d: %w", hostABIFirst, err)
		}
	}
	return nil
}

// finishMigration makes the pins this version's, once no program reads the old map.
func (h *Host) finishMigration() error {
	c := h.state.config
	c.AbiVersion = uint32(hostHostLimitLIMIT_HOST_ABI_VERSION)
	if err := h.configureLocked(c); err != nil {
		return err
	}
	for _, pin := range append([]string{hostMapBindingsOne}, formerFlowPins...) {
		if err := removeOwnMap(filepath.Join(h.dir, pin), formerTable(pin)); err != nil {
			return fmt.Errorf("remove tables of before: %w", err)
		}
	}
	return nil
}
