package dataplane

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cilium/ebpf/link"
)

// muxPinOther begins the names of the pins of further interfaces' links; the interface's number follows.
const muxPinOther = muxPinLink + "_"

func otherPin(dir string, ifindex int) string {
	return filepath.Join(dir, muxPinOther+strconv.Itoa(ifindex))
}

// otherPins lists the numbers of the further interfaces that have pins.
func otherPins(dir string) ([]int, error) {
	return numberedPins(dir, muxPinOther)
}

// dropOthers takes the program off further interfaces but those that stay, and removes their pins. Objects of others at the paths stay.
func dropOthers(dir string, stay []int) error {
	pins, err := otherPins(dir)
	if err != nil {
		return err
	}
	for _, ifindex := range pins {
		if slices.Contains(stay, ifindex) {
			continue
		}
		l, _, err := openOwnLink(otherPin(dir, ifindex), muxLinkPrograms...)
		if err != nil {
			return err
		}
		if l == nil {
			continue
		}
		if err := dropLink(l); err != nil {
			return err
		}
	}
	return nil
}

// othersAttached says whether the program is on any further interface.
func othersAttached(dir string) (bool, error) {
	pins, err := otherPins(dir)
	if err != nil {
		return false, err
	}
	for _, ifindex := range pins {
		l, _, err := openOwnLink(otherPin(dir, ifindex), muxLinkPrograms...)
		if err != nil {
			return false, err
		}
		if l == nil {
			continue
		}
		attached := xdpIfindex(l) != 0
		l.Close()
		if attached {
			return true, nil
		}
	}
	return false, nil
}

// checkOthers refuses more interfaces than the program knows addresses of, and one that is given twice.
func checkOthers(o MuxOptions) error {
	all := append([]int{o.Ifindex}, o.Others...)
	if len(all) > int(muxLimitLIMIT_INTERFACES) {
		return fmt.Errorf("interfaces: %d: at most %d", len(all), muxLimitLIMIT_INTERFACES)
	}
	for i, ifindex := range all {
		if slices.Contains(all[:i], ifindex) {
			return fmt.Errorf("interface %d: given twice", ifindex)
		}
	}
	return nil
}

// attachOthers attaches the program to the further interfaces: one link and one pin each. What is there already is
// replaced in one step.
func (m *Mux) attachOthers() error {
	dir := m.options.BPFFS
	if err := dropOthers(dir, m.options.Others); err != nil {
		return err
	}
	for _, ifindex := range m.options.Others {
		old, pin := m.others[ifindex], otherPin(dir, ifindex)
		if old != nil && xdpIfindex(old) == ifindex {
			bad, err := badLinkPin(pin, old)
			if err != nil {
				return err
			}
			if bad != nil {
				l, err := pinAgain(old, pin, bad, m.options.log())
				if err != nil {
					return fmt.Errorf("pin XDP link again: %w", err)
				}
				m.others[ifindex] = l
				continue
			}
		}
		l, err := attachXDP(m.objects.Mux, ifindex, m.options.Mode, pin, m.options.log())
		if err != nil {
			return err
		}
		if old != nil {
			old.Close()
		}
		if m.others == nil {
			m.others = map[int]link.Link{}
		}
		m.others[ifindex] = l
	}
	for ifindex, l := range m.others {
		if !slices.Contains(m.options.Others, ifindex) {
			l.Close()
			delete(m.others, ifindex)
		}
	}
	return nil
}

// tendOthers is Tend for the further interfaces.
func (m *Mux) tendOthers(others []int) (mended bool, err error) {
	same := slices.Equal(others, m.options.Others)
	for _, ifindex := range others {
		l := m.others[ifindex]
		if l == nil || xdpIfindex(l) != ifindex {
			same = false
			continue
		}
		if bad, err := badLinkPin(otherPin(m.options.BPFFS, ifindex), l); err != nil || bad != nil {
			same = false
		}
	}
	if same {
		return false, nil
	}
	m.options.Others = slices.Clone(others)
	if err := m.attachOthers(); err != nil {
		return false, err
	}
	return true, m.watchAgain()
}

// takeFramesToOthers makes the program take frames to the addresses of all interfaces.
func (m *Mux) takeFramesToOthers() error {
	var macs [muxLimitLIMIT_INTERFACES]uint64
	for i, ifindex := range m.options.Others {
		mac, err := m.tables.hops.mac(ifindex)
		if err != nil {
			return fmt.Errorf("read address of interface %d: %w", ifindex, err)
		}
		macs[i] = macWord(mac)
	}
	if err := m.objects.OwnMacs.Set(macs); err != nil {
		return fmt.Errorf("set %s: %w", muxVarOwnMacs, err)
	}
	return nil
}
