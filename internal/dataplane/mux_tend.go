package dataplane

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// attach attaches the program to an interface, whose address it follows from then on, and to the further ones.
func (m *Mux) attach(ifindex int) error {
	if err := m.attachFirst(ifindex); err != nil {
		return err
	}
	return m.attachOthers()
}

// attachFirst is attach but for the further interfaces: those that stay keep the program that they have.
func (m *Mux) attachFirst(ifindex int) error {
	if err := m.followAddress(ifindex); err != nil {
		return err
	}
	if err := dropOthers(m.options.BPFFS, m.options.Others); err != nil {
		return err
	}
	l, err := attachXDP(m.objects.Mux, ifindex, m.options.Mode, m.linkPin(), m.options.log())
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
	if err := m.takeFramesTo(mac); err != nil {
		return err
	}
	return m.takeFramesToOthers()
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
// present one, others are the further ones'.
func (m *Mux) Tend(ifindex int, others ...int) (mended string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.former != nil {
		return "", nil // the interface is still the former program's
	}
	if m.link == nil {
		return "", errors.New("tend: attached to no interface")
	}
	m.tables.hops.refreshDevices()
	m.tables.tune()
	pinned, err := m.tendPins()
	if err != nil {
		return "", err
	}
	// What cannot be mended of one interface must not keep the others from it.
	again, othersErr := m.tendOthers(others)
	if again {
		mended = "the program was not attached to all interfaces; it is again"
	}
	first, err := m.tendFirst(ifindex)
	return cmp.Or(pinned, first, mended), errors.Join(err, othersErr)
}

// tendPins restores the pins of tables that were removed or replaced by other objects, because the next agent adopts the tables by them.
func (m *Mux) tendPins() (mended string, err error) {
	if m.ending != nil || m.options.BPFFS == "" {
		return "", nil // they are being moved, or there are none
	}
	tables, dir := m.objects.byName(), m.set(muxPinTables)
	bad, err := badPins(dir, tables, m.pinsSeen)
	if len(bad) == 0 {
		return "", err
	}
	if err := EnsureBPFFS(m.options.BPFFS); err != nil {
		return "", err
	}
	if err := m.lockAgain(); err != nil {
		return "", err
	}
	if len(bad) < len(tables) {
		if repairErr := repairPins(m.options.BPFFS, dir, tables, bad, m.options.log()); repairErr != nil {
			return "", errors.Join(err, repairErr)
		}
		return "restored pins of tables: " + pinWords(bad), err
	}
	if err := removeSet(m.options.BPFFS, muxPinTables, m.options.log()); err != nil {
		return "", err
	}
	if err := pinMaps(m.options.BPFFS, muxPinTables, tables, m.options.log()); err != nil {
		return "", err
	}
	return "the pins of the tables were removed; restored", nil
}

// lockAgain locks the pin directory if it is another one than this process locked: somebody removed it, or unmounted its file system.
func (m *Mux) lockAgain() error {
	if m.lock == nil {
		return nil
	}
	same, err := m.lock.holds(m.options.BPFFS)
	if err != nil || same {
		return err
	}
	lock, err := lockPins(m.options.BPFFS)
	if err != nil {
		return err
	}
	m.lock.Close()
	m.lock = lock
	return nil
}

// tendFirst is Tend for the first interface.
func (m *Mux) tendFirst(ifindex int) (mended string, err error) {
	if err := m.followAddress(ifindex); err != nil {
		return "", err
	}
	if xdpIfindex(m.link) != ifindex {
		if err := m.attachFirst(ifindex); err != nil {
			return "", err
		}
		return "the program was not attached; it is again", m.watchAgain()
	}
	bad, err := badLinkPin(m.linkPin(), m.link)
	if err != nil || bad == nil {
		return "", err
	}
	if err := EnsureBPFFS(m.options.BPFFS); err != nil {
		return "", err
	}
	if err := m.pinLinkAgain(bad); err != nil {
		return "", fmt.Errorf("pin XDP link again: %w", err)
	}
	return "restored the pin of the program's link: " + pinWords([]badPin{*bad}), nil
}

// watchAgain puts the watching program, if there is one, behind links that were made again.
func (m *Mux) watchAgain() error {
	if m.watch == nil {
		return nil
	}
	return m.runProgram(m.watch.objects.Program)
}

// pinLinkAgain pins a link whose pin somebody removed.
func (m *Mux) pinLinkAgain(bad *badPin) error {
	l, err := pinAgain(m.link, m.linkPin(), bad, m.options.log())
	if err == nil {
		m.link = l
	}
	return err
}

// pinAgain pins a link that has lost its pin, and puts another object aside that is there; the new handle replaces the old one, which it closes.
func pinAgain(old link.Link, pin string, bad *badPin, log *slog.Logger) (link.Link, error) {
	fd, ok := old.(interface{ FD() int })
	if !ok {
		return nil, fmt.Errorf("pin %s: link of type %T has no descriptor", pin, old)
	}
	// Another handle of the link, which has no pin. Opening it by its id would need CAP_SYS_ADMIN.
	other, err := unix.FcntlInt(uintptr(fd.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("pin %s: %w", pin, err)
	}
	l, err := link.NewFromFD(other)
	if err != nil {
		return nil, err
	}
	if bad.found != "" {
		if err := putAside(filepath.Dir(pin), pin, bad.found, log); err != nil {
			l.Close()
			return nil, err
		}
	}
	if err := l.Pin(pin); err != nil {
		l.Close()
		return nil, err
	}
	old.Close()
	return l, nil
}
