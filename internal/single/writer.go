package single

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// hasWriter reports whether a process has the file open for writing: the kernel grants no read lease then (fcntl(2), F_SETLEASE). False
// where the file system has no leases.
func hasWriter(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return errors.Is(err, unix.EAGAIN)
	}
	_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK) // closing the file ends it too
	return false
}
