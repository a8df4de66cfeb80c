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
)

// removeFiles removes all files in a directory of a node: its pins, or its run directory. It waits
// for a running agent, because without one the tables and programs would be lost with their pins.
// The mend waits until the node has restored each file, and starts another agent, which adopts the
// tables by their pins and the speaker by its socket.
func removeFiles(ctx context.Context, node, dir string) (mending, error) {
	n, err := cluster.Topology.Find(node)
	if err != nil {
		return nil, err
	}
	if err := poll(ctx, func(ctx context.Context) error {
		_, err := metricsOf(ctx, n)
		return err
	}); err != nil {
		return nil, err
	}
	before, err := filesIn(dir)
	if err != nil {
		return nil, err
	}
	for name := range before {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) error {
		if err := poll(ctx, func(context.Context) error {
			now, err := filesIn(dir)
			if err != nil {
				return err
			}
			for name := range before {
				if !now[name] && name != "starts" { // the count of starts begins anew
					return fmt.Errorf("%s has no %s in %s, only %v", node, name, dir, slices.Sorted(maps.Keys(now)))
				}
			}
			return nil
		}); err != nil {
			return err
		}
		return errors.Join(cluster.KillAgent(ctx, node), cluster.StartAgent(node))
	}, nil
}

// filesIn returns the files in a directory and below, by their paths in it.
func filesIn(dir string) (map[string]bool, error) {
	found := map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		found[name] = true
		return err
	})
	return found, err
}
