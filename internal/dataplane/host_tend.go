package dataplane

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// pinnedMaps returns the maps that have pins, by the names of these. tending is held.
func (h *Host) pinnedMaps() map[string]*ebpf.Map {
	all := map[string]*ebpf.Map{}
	maps := reflect.ValueOf(&h.objects.hostMaps).Elem()
	for i := range maps.NumField() {
		name := maps.Type().Field(i).Tag.Get("ebpf")
		if m, ok := maps.Field(i).Interface().(*ebpf.Map); ok && m != nil && hostPinned(name) {
			all[name] = m
		}
	}
	if h.co != nil {
		all[hostCOMapCoEndpoints], all[hostCOMapCoReasons], all[hostCOMapCoSetups] = h.co.objects.CoEndpoints, h.co.objects.CoReasons, h.co.objects.CoSetups
	}
	return all
}

// hostPinned reports whether the map of this name has a pin: the others live no longer than a packet.
func hostPinned(name string) bool {
	return name[0] != '.' && name != hostMapArrivals && name != hostMapSNATLows && name != hostMapFlowShares && name != hostMapSNATSpent
}

// Tend restores what others removed: pins of the tables, links of the programs and their pins. ifindex is the uplink's present index: when it
// differs from before, the programs move there. The result names what was restored and is empty when nothing was missing. An error of one
// part keeps no other part from being restored.
func (h *Host) Tend(ifindex int) (restored []string, err error) {
	h.tending.Lock()
	defer h.tending.Unlock()
	pins, pinErr := h.tendPins()
	uplink, uplinkErr := h.tendUplink(ifindex)
	serve, serveErr := h.tendServe()
	restored = append(append(pins, uplink...), serve...)
	return restored, errors.Join(pinErr, uplinkErr, serveErr)
}

// tendPins pins the tables that have lost their pins, or have other objects at their paths: the next agent adopts the tables by them.
func (h *Host) tendPins() (restored []string, err error) {
	maps := h.pinnedMaps()
	bad, err := badPins(h.dir, maps, h.pinsSeen)
	if len(bad) == 0 {
		return nil, err
	}
	if err := EnsureBPFFS(h.dir); err != nil {
		return nil, err
	}
	if repairErr := repairPins(h.dir, h.dir, maps, bad, h.log); repairErr != nil {
		return nil, errors.Join(err, repairErr)
	}
	if len(bad) == len(maps) {
		return []string{"pins of all tables"}, err
	}
	return []string{"pins of tables: " + pinWords(bad)}, err
}

// tendUplink attaches the programs of the uplink again where they are not attached to it, and pins links without a pin. tending is held.
func (h *Host) tendUplink(ifindex int) (restored []string, err error) {
	var errs []error
	for i, hook := range hostHooks {
		pin := filepath.Join(h.dir, hook.pin)
		l, what, err := h.tendLink(h.links[i], pin, ifindex, func() (link.Link, error) { return attachHook(hook, h, ifindex) })
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if h.links[i] = l; what != "" {
			restored = append(restored, what)
		}
	}
	if h.co == nil || len(errs) > 0 {
		return restored, errors.Join(errs...)
	}
	c := h.co
	l, what, err := h.tendLink(c.link, filepath.Join(h.dir, coLinkPin), ifindex, func() (link.Link, error) { return c.attached(h) })
	if err != nil {
		return restored, err
	}
	if c.link = l; what != "" {
		restored = append(restored, what)
	}
	return restored, nil
}

// tendServe does the same for the devices of servers. A device that is gone is left to Serve, which gets the present devices.
func (h *Host) tendServe() (restored []string, err error) {
	h.serving.Lock()
	defer h.serving.Unlock()
	var errs []error
	for ifindex, old := range h.serve {
		pin := servePin(h.dir, ifindex)
		if linkIfindex(old) == 0 && !deviceExists(ifindex) {
			continue
		}
		l, what, err := h.tendLink(old, pin, ifindex, func() (link.Link, error) { return h.attachServe(ifindex) })
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if h.serve[ifindex] = l; what != "" {
			restored = append(restored, what)
		}
	}
	return restored, errors.Join(errs...)
}

// deviceExists reports whether an interface of this index is in the namespace.
func deviceExists(ifindex int) bool {
	_, err := net.InterfaceByIndex(ifindex)
	return err == nil
}

// tendLink returns the link that holds a program to an interface: old, old with a new pin, or the one that attach makes. what says which
// was restored.
func (h *Host) tendLink(old link.Link, pin string, ifindex int, attach func() (link.Link, error)) (l link.Link, what string, err error) {
	name := filepath.Base(pin)
	if linkIfindex(old) != ifindex {
		if err := removePin(pin, old); err != nil {
			return nil, "", err
		}
		if l, err = attach(); err != nil {
			return nil, "", err
		}
		old.Close()
		return l, "attachment of " + name, nil
	}
	bad, err := badLinkPin(pin, old)
	if err != nil || bad == nil {
		return old, "", err
	}
	if err := EnsureBPFFS(h.dir); err != nil {
		return nil, "", err
	}
	if l, err = pinAgain(old, pin, bad, h.log); err != nil {
		return nil, "", fmt.Errorf("pin link %s again: %w", pin, err)
	}
	return l, "pin of " + pinWords([]badPin{*bad}), nil
}

// removePin detaches a link that is on another interface than wanted, and removes its pin. Another object at the path stays there.
func removePin(pin string, l link.Link) error {
	bad, err := badLinkPin(pin, l)
	if err != nil {
		return err
	}
	if linkIfindex(l) != 0 {
		if err := l.Detach(); err != nil {
			return fmt.Errorf("detach %s: %w", pin, err)
		}
	}
	if bad != nil {
		return nil
	}
	if err := os.Remove(pin); err != nil {
		return fmt.Errorf("remove pin: %w", err)
	}
	return nil
}
