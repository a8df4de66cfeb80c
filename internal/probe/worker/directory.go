package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// directory holds the path of the programs of external checks and the parts that start them.
type directory struct {
	path     string
	user     User
	launcher *launcher
	groups   *groups
	// stuck counts the programs that were given up: they were killed and have not ended.
	stuck atomic.Int32
	// waitEnd waits for the end of a process and leaves it waitable.
	waitEnd func(pid int) error
	// giveUp is how long to wait after the timeout for the end of a program that was killed.
	giveUp time.Duration
}

// openDirectory opens a directory that only root can change.
func openDirectory(path string, u User) (*directory, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("programs: %q: must be an absolute path", path)
	}
	if err := u.validate(); err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("programs: %w", err)
	}
	info, err := os.Stat(real)
	if err != nil {
		return nil, fmt.Errorf("programs: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("programs: %q: must be a directory", path)
	}
	if err := onlyRootChanges(real); err != nil {
		return nil, fmt.Errorf("programs: %w", err)
	}
	return &directory{path: real, user: u, launcher: newLauncher(), groups: openGroups(), waitEnd: waitEnd, giveUp: giveUp}, nil
}

func (d *directory) close() {
	d.launcher.close()
	d.groups.close()
}

// find resolves a program's path and checks that only root can change the program. It is called
// before each start, because the files may have changed since the check was added.
func (d *directory) find(program string) (string, error) {
	if !filepath.IsAbs(program) {
		return "", fmt.Errorf("program: %q: must be an absolute path", program)
	}
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return "", fmt.Errorf("program: %w", err)
	}
	if !strings.HasPrefix(real, strings.TrimSuffix(d.path, "/")+"/") {
		return "", fmt.Errorf("program: %q is %s: must be below %s", program, real, d.path)
	}
	info, err := os.Stat(real)
	if err != nil {
		return "", fmt.Errorf("program: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return "", fmt.Errorf("program: %q: must be a file that can be executed", program)
	}
	if err := onlyRootChanges(real); err != nil {
		return "", fmt.Errorf("program: %w", err)
	}
	return real, nil
}

// onlyRootChanges checks a path without symbolic links. The path and all directories above must
// belong to root and be writable only by root. Sticky directories like /tmp may be writable by
// others, because only root can replace root's files there.
func onlyRootChanges(path string) error {
	for ; ; path = filepath.Dir(path) {
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		switch {
		case !ok:
			return errors.New("the owners of files are unknown")
		case stat.Uid != 0:
			return fmt.Errorf("%s belongs to user %d: must belong to root", path, stat.Uid)
		case info.Mode().Perm()&0o022 != 0 && !(info.IsDir() && info.Mode()&fs.ModeSticky != 0):
			return fmt.Errorf("%s has mode %04o: only root must be able to write there", path, info.Mode().Perm())
		}
		if path == "/" {
			return nil
		}
	}
}
