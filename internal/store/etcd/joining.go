package etcd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Files in a member's directory that are used before its log begins.
const (
	// joiningFile marks a member that is to join a cluster. Without the result of Cluster.Add it
	// must not start a new cluster.
	joiningFile = "joining"
	// clusterFile holds the result of Cluster.Add.
	clusterFile = "cluster"
)

var errJoining = errors.New("a join of this member broke off: join again")

// begun reports whether the member has a log. It then belongs to a cluster, which the log
// identifies.
func begun(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, "member", "wal"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// BeginJoin records that the member of the directory is about to join others, before any of their
// data is written there; false: it already belongs to a cluster.
func BeginJoin(dir string) (bool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	if is, err := begun(dir); is || err != nil {
		return false, err
	}
	_, err := os.Stat(filepath.Join(dir, joinedFile))
	if err == nil {
		return false, nil
	}
	return true, writeLines(filepath.Join(dir, joiningFile), nil)
}

// joinedFile replaces the log for a member without one: its store is external.
const joinedFile = "joined"

// EndJoin records that a member with an external store has joined.
func EndJoin(dir string) error {
	return os.Rename(filepath.Join(dir, joiningFile), filepath.Join(dir, joinedFile))
}

// initialCluster returns o.Cluster, or that of an earlier start that did not begin a log.
func initialCluster(o Options) ([]string, error) {
	if is, err := begun(o.Dir); is || err != nil {
		return o.Cluster, err
	}
	path := filepath.Join(o.Dir, clusterFile)
	if len(o.Cluster) > 0 {
		return o.Cluster, writeLines(path, o.Cluster)
	}
	cluster, err := readLines(path)
	if err != nil || len(cluster) > 0 {
		return cluster, err
	}
	if _, err := os.Stat(filepath.Join(o.Dir, joiningFile)); err == nil {
		return nil, errJoining
	}
	return nil, nil
}
