package netdev

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offload is a feature of a device that ethtool -K switches.
type Offload uint32

// Offloads, by the ethtool commands that set them (linux/ethtool.h).
const (
	OffloadTxChecksum Offload = unix.ETHTOOL_STXCSUM
	OffloadGRO        Offload = unix.ETHTOOL_SGRO
)

// ethtoolValue is struct ethtool_value.
type ethtoolValue struct {
	cmd  uint32
	data uint32
}

// ifreqData is struct ifreq with ifr_data.
type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// SetOffload switches a feature of a device. Without transmit checksums the kernel also stops TSO.
func (n *Namespace) SetOffload(dev string, o Offload, on bool) error {
	value := ethtoolValue{cmd: uint32(o)}
	if on {
		value.data = 1
	}
	req := ifreqData{data: unsafe.Pointer(&value)}
	if len(dev) >= len(req.name) {
		return fmt.Errorf("set offload of %s/%s: device name longer than %d bytes", n.Name, dev, len(req.name)-1)
	}
	copy(req.name[:], dev)
	return In(n.Name, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open socket in %s: %w", n.Name, err)
		}
		defer unix.Close(fd)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
			return fmt.Errorf("set offload %#x of %s/%s: %w", uint32(o), n.Name, dev, errno)
		}
		return nil
	})
}
