package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// serveLinkPin begins the names of the pins of links on servers' devices; the device's index follows.
const serveLinkPin = "link_serve_"

// HostServers says where servers are.
type HostServers struct {
	// Devices that servers are behind, by index.
	Devices []int
	// Senders are who may send from which address by these devices.
	Senders []HostSender
}

// servePins are the pins of links on servers' devices.
func servePins(dir string) (pins []string, err error) {
	devices, err := numberedPins(dir, serveLinkPin)
	for _, ifindex := range devices {
		pins = append(pins, servePin(dir, ifindex))
	}
	return pins, err
}

// servePin is the pin of the link on a device.
func servePin(dir string, ifindex int) string {
	return filepath.Join(dir, serveLinkPin+strconv.Itoa(ifindex))
}

// adoptServe takes over the programs on servers' devices: each is replaced in one step. Pins of devices that went are removed.
func (h *Host) adoptServe() error {
	h.serving.Lock()
	defer h.serving.Unlock()
	pins, err := servePins(h.dir)
	if err != nil {
		return err
	}
	for _, pin := range pins {
		l, err := takeOwnLink(pin, h.log, hostProgHostServe)
		if err != nil {
			return err
		}
		if l == nil {
			continue
		}
		ifindex := linkIfindex(l)
		if ifindex == 0 {
			if err := errors.Join(l.Unpin(), l.Close()); err != nil {
				return fmt.Errorf("remove pin %s: %w", pin, err)
			}
			continue
		}
		if err := l.Update(h.objects.HostServe); err != nil {
			l.Close()
			return fmt.Errorf("replace program of %s: %w", pin, err)
		}
		h.serve[ifindex] = l
	}
	return nil
}

// Serve implements HostTables. The program is the first of a device, where it shall not be the last: it sees what servers send before
// others may take it. Who may send before a device has the program; who may not any more sends until
// the end.
func (h *Host) Serve(s HostServers) (on []int, err error) {
	senders, err := wantedSenders(s.Senders)
	h.serving.Lock()
	defer h.serving.Unlock()
	if err == nil {
		err = putAll(h.objects.Senders, h.senders, senders)
	}
	if err != nil {
		return slices.Sorted(maps.Keys(h.serve)), err
	}
	errs := []error{h.followLocked(s.Devices), prune(h.objects.Senders, h.senders, senders)}
	return slices.Sorted(maps.Keys(h.serve)), errors.Join(errs...)
}

// followLocked puts the program on these devices, and takes it off others. serving is held.
func (h *Host) followLocked(devices []int) error {
	var errs []error
	for ifindex, l := range h.serve {
		if slices.Contains(devices, ifindex) && linkIfindex(l) == ifindex {
			continue
		}
		if err := h.dropServe(ifindex, l); err != nil {
			errs = append(errs, fmt.Errorf("take the program off interface %d: %w", ifindex, err))
			continue
		}
		delete(h.serve, ifindex)
	}
	for _, ifindex := range devices {
		if h.serve[ifindex] != nil {
			continue
		}
		l, err := h.attachServe(ifindex)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		h.serve[ifindex] = l
	}
	return errors.Join(errs...)
}

// attachServe attaches and pins.
func (h *Host) attachServe(ifindex int) (link.Link, error) {
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: h.objects.HostServe, Attach: ebpf.AttachTCXIngress, Anchor: h.place()})
	if err != nil {
		return nil, fmt.Errorf("attach %s to interface %d: %w", ebpf.AttachTCXIngress, ifindex, err)
	}
	pin := servePin(h.dir, ifindex)
	old, err := takeOwnLink(pin, h.log, hostProgHostServe)
	if old != nil {
		err = releaseServe(old)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	if err := l.Pin(pin); err != nil {
		l.Close()
		return nil, fmt.Errorf("pin link %s: %w", pin, err)
	}
	return l, nil
}

// dropServe takes the program off a device. An object of others at the path of its pin stays there.
func (h *Host) dropServe(ifindex int, l link.Link) error {
	bad, err := badLinkPin(servePin(h.dir, ifindex), l)
	if err != nil {
		return err
	}
	if bad == nil {
		return releaseServe(l)
	}
	if linkIfindex(l) != 0 {
		if err := l.Detach(); err != nil {
			return err
		}
	}
	return l.Close()
}

// releaseServe detaches a link, removes its pin and lets go of it.
func releaseServe(l link.Link) error {
	if err := release(l); err != nil {
		return err
	}
	return l.Close()
}

// besideServe is where on a device's ingress others of ours go: behind the program that sees what servers send, else first.
func (h *Host) besideServe(ifindex int) link.Anchor {
	h.serving.Lock()
	defer h.serving.Unlock()
	if l := h.serve[ifindex]; l != nil && linkIfindex(l) == ifindex {
		return link.AfterLink(l)
	}
	return link.Head()
}

// detachServe takes the programs pinned in dir off servers' devices and removes the pins.
func detachServe(dir string) error {
	pins, err := servePins(dir)
	if err != nil {
		return err
	}
	for _, pin := range pins {
		l, _, err := openOwnLink(pin, hostProgHostServe)
		if err != nil {
			return err
		}
		if l == nil {
			continue
		}
		if err := releaseServe(l); err != nil {
			return fmt.Errorf("detach %s: %w", pin, err)
		}
	}
	return nil
}
