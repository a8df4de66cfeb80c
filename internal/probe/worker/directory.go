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

// directory is where the programs of external checks are, and what starts them.
type directory struct {
	path     string
	user     User
	launcher *launcher
	groups   *groups
	// stuck are programs that were given up: they were killed, and go on.
	stuck atomic.Int32
	// waitEnd waits for the end of a process, which is still to be waited for then.
	waitEnd func(pid int) error
	// giveUp is how long after its timeout the end of a program that was killed is waited for.
	giveUp time.Duration
}

// openDirectory takes a directory that nobody but root can change.
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

// find resolves a program's path and checks that root alone decides what it is. It is asked before each start: what was true when
// the check was made may have changed.
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

// onlyRootChanges checks a path without symbolic links: it and all directories above belong to root, and nobody else may write
// there, but in directories like /tmp, where nobody can replace what is root's.
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
