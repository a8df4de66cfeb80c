package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf/link"
)

// attach attaches the program to an interface, whose address it follows from then on.
func (m *Mux) attach(ifindex int) error {
	if err := m.followAddress(ifindex); err != nil {
		return err
	}
	l, err := attachXDP(m.objects.Mux, ifindex, m.options.Mode, m.linkPin())
	if err != nil {
		return err
	}
	if m.link != nil {
		m.link.Close()
	}
	m.link = l
	return nil
}

func (m *Mux) linkPin() string { return filepath.Join(m.options.BPFFS, muxPinLink) }

// followAddress makes the program take the frames that are sent to an interface.
func (m *Mux) followAddress(ifindex int) error {
	mac, err := m.options.Address, error(nil)
	if mac == [6]byte{} {
		if mac, err = m.tables.hops.mac(ifindex); err != nil {
			return fmt.Errorf("read own address: %w", err)
		}
	}
	return m.takeFramesTo(mac)
}

// takeFramesTo makes the program take frames to an Ethernet address, or all when it is zero.
func (m *Mux) takeFramesTo(mac [6]byte) error {
	var now uint64
	if err := m.objects.OwnMac.Get(&now); err != nil {
		return fmt.Errorf("read %s: %w", muxVarOwnMac, err)
	}
	if now == macWord(mac) {
		return nil
	}
	if err := m.objects.OwnMac.Set(macWord(mac)); err != nil {
		return fmt.Errorf("set %s: %w", muxVarOwnMac, err)
	}
	return nil
}

// Tend mends what others did to the interface: it has another address, was deleted and made again, lost its program, or
// the pin of the link is gone. It says in words what was mended, nothing when all was well. ifindex is the interface's
// present one.
func (m *Mux) Tend(ifindex int) (mended string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.link == nil {
		return "", errors.New("tend: attached to no interface")
	}
	m.tables.hops.refreshDevices()
	if err := m.followAddress(ifindex); err != nil {
		return "", err
	}
	if xdpIfindex(m.link) != ifindex {
		if err := m.attach(ifindex); err != nil {
			return "", err
		}
		return "the program was not attached; it is again", nil
	}
	if _, err := os.Stat(m.linkPin()); !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := m.pinLinkAgain(); err != nil {
		return "", fmt.Errorf("pin XDP link again: %w", err)
	}
	return "the pin of the program's link was gone; it is there again", nil
}

// pinLinkAgain pins a link whose pin somebody removed.
func (m *Mux) pinLinkAgain() error {
	info, err := m.link.Info()
	if err != nil {
		return err
	}
	l, err := link.NewFromID(info.ID)
	if err != nil {
		return err
	}
	if err := l.Pin(m.linkPin()); err != nil {
		l.Close()
		return err
	}
	m.link.Close()
	m.link = l
	return nil
}
