package etcd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
)

// checkFiles reads the whole log and database, so that damage is found here and not when the
// running etcd reads it. The log has checksums. The database has none: damage that breaks no rule
// of its format is only found by comparing it with the other members', which etcd does when it
// starts.
func checkFiles(dir string) error {
	log, db := filepath.Join(dir, "member", "wal"), filepath.Join(dir, "member", "snap", "db")
	if _, err := os.Stat(db); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	logs, err := filepath.Glob(filepath.Join(log, "*.wal"))
	if err != nil {
		return err
	}
	if len(logs) == 0 {
		return damaged(fmt.Errorf("%s: holds no log although there is a database", log))
	}
	if err := guarded(func() error { _, err := wal.ValidSnapshotEntries(zap.NewNop(), log); return err }); err != nil {
		return damaged(fmt.Errorf("%s: %w", log, err))
	}
	if err := guarded(func() error { return readDatabase(db) }); err != nil {
		return damaged(fmt.Errorf("%s: %w", db, err))
	}
	return nil
}

// guarded reads files that may be damaged: a page may contain addresses outside of its file.
func guarded(read func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("%v", r)
			}
		}()
		debug.SetPanicOnFault(true)
		err = read()
	}()
	<-done
	return err
}

// lockTimeout bounds the wait for another process that uses the files. That is no damage, and the
// caller's lock prevents it.
const lockTimeout = time.Second

func readDatabase(path string) error {
	// Do not load the list of free pages, because bbolt does that in a goroutine in which damage
	// would end the process. That list depends on the pages that are read here.
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			return readBucket(string(name), b)
		})
	})
}

func readBucket(name string, b *bolt.Bucket) error {
	last, first := []byte(nil), true
	return b.ForEach(func(k, v []byte) error {
		if !first && string(k) <= string(last) {
			return fmt.Errorf("bucket %q: keys are out of order", name)
		}
		last, first = append(last[:0], k...), false
		if v == nil {
			return fmt.Errorf("bucket %q: holds a bucket", name)
		}
		if name != "key" {
			return nil
		}
		var kv mvccpb.KeyValue
		if err := proto.Unmarshal(v, &kv); err != nil {
			return fmt.Errorf("bucket %q: a value is none: %w", name, err)
		}
		return nil
	})
}

// readLines reads a file of writeLines; nil if it does not exist.
func readLines(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(text)), err
}

// writeLines writes the lines durably and atomically.
func writeLines(path string, lines []string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(strings.Join(lines, "\n") + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
