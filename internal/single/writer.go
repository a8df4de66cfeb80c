package single

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// hasWriter reports whether a process has the file open for writing. It requests a read lease,
// which the kernel then refuses (fcntl(2), F_SETLEASE). It returns false if the file system has no
// leases.
func hasWriter(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return errors.Is(err, unix.EAGAIN)
	}
	// closing the file would end it, too
	_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return false
}
