package etcd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Files in a member's directory that are of use before its log begins.
const (
	// joiningFile says that it is to be one of a cluster: without what Cluster.Add gave, it must not begin one of its own.
	joiningFile = "joining"
	// clusterFile is what Cluster.Add gave.
	clusterFile = "cluster"
)

var errJoining = errors.New("a join of this member broke off: join again")

// begun tells whether the member has a log: it is one of a cluster, and knows which.
func begun(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, "member", "wal"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// BeginJoin notes that the member of the directory is about to join others, before anything else of them is written there;
// false: it is one of a cluster already.
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

// joinedFile stands for the log of a member that has none: its store is outside.
const joinedFile = "joined"

// EndJoin notes that a member has joined whose store is outside.
func EndJoin(dir string) error {
	return os.Rename(filepath.Join(dir, joiningFile), filepath.Join(dir, joinedFile))
}

// initialCluster is o.Cluster, or what an earlier start was given that never got as far as to begin a log.
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
