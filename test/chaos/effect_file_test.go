package chaos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// identity distinguishes a file from a later one at its path.
type identity struct {
	inode   uint64
	changed syscall.Timespec
}

// identitiesIn returns the identities of the files in a directory and below.
func identitiesIn(dir string) (map[string]identity, error) {
	names, err := filesIn(dir)
	found := map[string]identity{}
	for name := range names {
		info, err := os.Lstat(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		stat := info.Sys().(*syscall.Stat_t)
		found[name] = identity{stat.Ino, stat.Ctim}
	}
	return found, err
}

// filesRemoved counts the files of a directory that were removed or replaced.
func filesRemoved(dir string) (effect, error) {
	before, err := identitiesIn(dir)
	if err != nil {
		return nil, err
	}
	return func(context.Context) (int, error) {
		now, err := identitiesIn(dir)
		if err != nil {
			return 0, err
		}
		count := 0
		for name, id := range before {
			if now[name] != id {
				count++
			}
		}
		if count == 0 {
			err = fmt.Errorf("the files in %s are those from before: %v", dir, slices.Sorted(maps.Keys(before)))
		}
		return count, err
	}, nil
}
