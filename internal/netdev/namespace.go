package netdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// CreateNamespace creates a named namespace as `ip netns add` does, with its loopback up. The name
// must be free.
func CreateNamespace(name string) error {
	unlock, err := shareNamespaceDir()
	if err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	defer unlock()
	path := filepath.Join(NamespaceDir, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	f.Close()
	if err := bindNew(path); err != nil {
		os.Remove(path)
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}

// bindNew creates a namespace on its own thread and binds it to the path.
func bindNew(path string) error {
	errs := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and nothing else runs in the new
		// namespace.
		runtime.LockOSThread()
		errs <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("unshare: %w", err)
			}
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(lo); err != nil {
				return fmt.Errorf("set lo up: %w", err)
			}
			self := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
			if err := unix.Mount(self, path, "none", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("bind %s: %w", path, err)
			}
			return nil
		}()
	}()
	return <-errs
}

// shareNamespaceDir makes NamespaceDir a shared mount point, which iproute2 requires, under
// iproute2's lock.
func shareNamespaceDir() (unlock func(), err error) {
	if err := os.MkdirAll(NamespaceDir, 0o755); err != nil {
		return nil, err
	}
	dir, err := os.Open(NamespaceDir)
	if err != nil {
		return nil, err
	}
	unlock = func() { dir.Close() }
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		unlock()
		return nil, fmt.Errorf("lock %s: %w", NamespaceDir, err)
	}
	share := func() error { return unix.Mount("", NamespaceDir, "none", unix.MS_SHARED|unix.MS_REC, "") }
	err = share()
	if errors.Is(err, unix.EINVAL) { // not a mount point yet
		if err = unix.Mount(NamespaceDir, NamespaceDir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = share()
		}
	}
	if err != nil {
		unlock()
		return nil, fmt.Errorf("share %s: %w", NamespaceDir, err)
	}
	return unlock, nil
}

// DeleteNamespace removes the name. The namespace ends with its last process and socket. A name
// that does not exist is no error.
func DeleteNamespace(name string) error {
	path := filepath.Join(NamespaceDir, name)
	for {
		err := unix.Unmount(path, unix.MNT_DETACH)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if errors.Is(err, unix.EINVAL) { // nothing mounted there any more
			break
		}
		if err != nil {
			return fmt.Errorf("delete namespace %s: %w", name, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete namespace %s: %w", name, err)
	}
	return nil
}

// NamespaceID is the inode number that identifies a network namespace.
type NamespaceID uint64

// IDOf returns the identity of the named namespace.
func IDOf(name string) (NamespaceID, error) { return statID(filepath.Join(NamespaceDir, name)) }

// IDOfProcess returns the identity of the namespace that the main thread of a process is in.
func IDOfProcess(pid int) (NamespaceID, error) { return statID(fmt.Sprintf("/proc/%d/ns/net", pid)) }

func statID(path string) (NamespaceID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("stat %s: %w", path, err)
	}
	return NamespaceID(st.Ino), nil
}

// Namespace configures the devices of one named namespace from outside.
type Namespace struct {
	Name string
	fd   netns.NsHandle
	nl   *netlink.Handle
}

// OpenNamespace opens a named namespace for configuration.
func OpenNamespace(name string) (*Namespace, error) {
	fd, err := netns.GetFromPath(filepath.Join(NamespaceDir, name))
	if err != nil {
		return nil, fmt.Errorf("open namespace %s: %w", name, err)
	}
	nl, err := netlink.NewHandleAt(fd, unix.NETLINK_ROUTE)
	if err != nil {
		fd.Close()
		return nil, fmt.Errorf("open netlink in namespace %s: %w", name, err)
	}
	return &Namespace{Name: name, fd: fd, nl: nl}, nil
}

// Close closes the handles; the namespace stays.
func (n *Namespace) Close() {
	n.nl.Close()
	n.fd.Close()
}
