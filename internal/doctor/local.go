package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
)

// Local is this machine, in the current network namespace.
type Local struct{}

// Kernel implements Machine.
func (Local) Kernel() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("uname: %w", err)
	}
	return unix.ByteSliceToString(name.Release[:]), nil
}

// Capabilities implements Machine.
func (Local) Capabilities() (uint64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("read capabilities: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	return 0, errors.New("read capabilities: no CapEff in /proc/self/status")
}

// BTF implements Machine.
func (Local) BTF() (bool, error) {
	_, err := os.Stat("/sys/kernel/btf/vmlinux")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// ForeignPins implements Machine.
func (Local) ForeignPins(path string) (found []string, err error) {
	all, err := filepath.Glob(filepath.Join(path, "shunt", "*", "*"))
	if err != nil {
		return nil, err
	}
	for _, file := range all {
		if dataplane.IsForeignPin(filepath.Base(file)) {
			found = append(found, file)
		}
	}
	return found, nil
}

// BPFFS implements Machine.
func (Local) BPFFS(path string) (bool, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return false, fmt.Errorf("statfs %s: %w", path, err)
	}
	return uint32(s.Type) == unix.BPF_FS_MAGIC, nil
}

// Sysctl implements Machine.
func (Local) Sysctl(key string) (string, error) { return netdev.ReadSysctl("", key) }

// Interface implements Machine.
func (Local) Interface(name string) (Interface, error) {
	i, err := netdev.FindInterface(name)
	return Interface{Up: i.Up, MTU: i.MTU, Driver: i.Driver, Index: i.Index}, err
}

// XDP implements Machine.
func (Local) XDP(name string) (XDP, error) {
	support, err := netdev.ReadXDPSupport(name)
	if err != nil {
		return XDP{}, err
	}
	out := XDP{Native: support.Native}
	if support.Attached != 0 {
		program, err := dataplane.ProgramName(support.Attached)
		if err != nil || program == "" {
			program = fmt.Sprintf("id %d", support.Attached)
		}
		out.Attached = program
	}
	return out, nil
}

// LRO implements Machine.
func (Local) LRO(name string) (bool, error) { return netdev.ReadLRO("", name) }

// VethPeer implements Machine.
func (Local) VethPeer(name string) (VethPeer, bool, error) {
	peer, found, err := netdev.FindPeer(name)
	if err != nil || !found {
		return VethPeer{}, false, err
	}
	out := VethPeer{Name: peer.Name}
	if peer.Namespace != "" {
		out.Command = "ip netns exec " + peer.Namespace + " "
	}
	if out.TxChecksum, err = netdev.ReadOffload(peer.Namespace, peer.Name, netdev.OffloadTxChecksum); err != nil {
		return VethPeer{}, false, err
	}
	if out.GRO, err = netdev.ReadOffload(peer.Namespace, peer.Name, netdev.OffloadGRO); err != nil {
		return VethPeer{}, false, err
	}
	return out, true, nil
}

// ProbeXDP implements Machine.
func (Local) ProbeXDP() error { return dataplane.ProbeXDP() }

// ProbeTCX implements Machine.
func (Local) ProbeTCX(device int) error { return dataplane.ProbeTCX(device) }

// ProbeArray implements Machine.
func (Local) ProbeArray() error { return dataplane.ProbeMmapableArray() }

// Tunnels implements Machine.
func (Local) Tunnels() ([]Tunnel, error) {
	found, err := netdev.FindTunnels()
	out := make([]Tunnel, len(found))
	for i, t := range found {
		out[i] = Tunnel(t)
	}
	return out, err
}

// Addresses implements Machine.
func (Local) Addresses() ([]Address, error) {
	found, err := netdev.OwnAddresses()
	out := make([]Address, len(found))
	for i, a := range found {
		out[i] = Address(a)
	}
	return out, err
}

// Way implements Machine.
func (Local) Way(from, to netip.Addr) (Way, error) {
	w, err := netdev.FindWay(from, to)
	return Way(w), err
}

// RouteDevices implements Machine.
func (Local) RouteDevices(to netip.Addr) ([]string, error) { return netdev.RouteDevices(to) }

// Firewall implements Machine.
func (Local) Firewall() (rules []string, err error) {
	for _, command := range [][]string{{"nft", "list", "ruleset"}, {"iptables-save"}, {"ip6tables-save"}} {
		path, err := exec.LookPath(command[0])
		if err != nil {
			continue
		}
		out, err := exec.Command(path, command[1:]...).Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(command, " "), err)
		}
		rules = append(rules, string(out))
	}
	return rules, nil
}

// LockedOut implements Machine.
func (Local) LockedOut(state string) (string, error) {
	content, err := os.ReadFile(filepath.Join(state, "locked-out"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(content)), err
}

// TakesGUE implements Machine.
func (Local) TakesGUE(is6 bool) (bool, error) { return netdev.TakesGUE(guePort, is6) }
