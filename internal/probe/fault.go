package probe

import (
	"errors"
	"slices"
	"syscall"
)

// shortages say that this machine has no descriptor, memory or port left.
var shortages = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EAGAIN, syscall.EADDRNOTAVAIL}

// Shortage tells whether an error says that this machine lacks what may be there again when another probe ends.
func Shortage(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains(shortages, errno)
}

// OwnFault tells whether an error says that this machine could not ask: by Shortage, or its own firewall or policy forbids it. It is
// no fault of a server.
func OwnFault(err error) bool {
	return Shortage(err) || errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES)
}
