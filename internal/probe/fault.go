package probe

import (
	"errors"
	"slices"
	"syscall"
)

// shortages are the errors of a machine without free descriptors, memory or ports.
var shortages = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EAGAIN, syscall.EADDRNOTAVAIL}

// Shortage reports whether err is a lack of a local resource that may be free again when another
// probe ends.
func Shortage(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains(shortages, errno)
}

// OwnFault reports whether err has a cause on this machine: a Shortage, or its own firewall or
// policy. Such an error is not the server's fault.
func OwnFault(err error) bool {
	return Shortage(err) || errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES)
}
