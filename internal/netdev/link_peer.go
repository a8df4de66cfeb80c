package netdev

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
)

// Peer is the other end of a veth.
type Peer struct {
	// Namespace is its name; "" is the current one.
	Namespace string
	Name      string
}

// FindPeer finds the other end of a veth of the current namespace, there or in a named namespace.
// It returns false if the other end is elsewhere.
func FindPeer(name string) (Peer, bool, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return Peer{}, false, fmt.Errorf("read interface %s: %w", name, err)
	}
	a := link.Attrs()
	if a.NetNsID < 0 {
		peer, err := netlink.LinkByIndex(a.ParentIndex)
		if err != nil {
			return Peer{}, false, nil
		}
		return Peer{Name: peer.Attrs().Name}, true, nil
	}
	namespace, ok := namespaceByID(a.NetNsID)
	if !ok {
		return Peer{}, false, nil
	}
	peer := Peer{Namespace: namespace}
	err = In(namespace, func() error {
		link, err := netlink.LinkByIndex(a.ParentIndex)
		if err != nil {
			return fmt.Errorf("read peer of interface %s in namespace %s: %w", name, namespace, err)
		}
		peer.Name = link.Attrs().Name
		return nil
	})
	return peer, err == nil, err
}

// namespaceByID returns the named namespace that has the id in the current one.
func namespaceByID(id int) (name string, ok bool) {
	entries, err := os.ReadDir(NamespaceDir)
	if err != nil {
		return "", false
	}
	for _, entry := range entries {
		f, err := os.Open(filepath.Join(NamespaceDir, entry.Name()))
		if err != nil {
			continue
		}
		found, err := netlink.GetNetNsIdByFd(int(f.Fd()))
		f.Close()
		if err == nil && found == id {
			return entry.Name(), true
		}
	}
	return "", false
}
