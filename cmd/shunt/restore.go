package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/backup"
	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/store"
	"github.com/shuntlb/shunt/internal/store/etcd"
)

// restoreFlags holds the flags of `shunt restore`.
type restoreFlags struct {
	data, name string
	// newCA gives the data directory a new CA and new secrets of managers instead of the backup's.
	newCA  bool
	unlock unlockFlags
	store  storeFlags
}

func newRestore(g *globals) *cobra.Command {
	var f restoreFlags
	cmd := &cobra.Command{
		Use:   "restore FILE --data DIR --name NAME",
		Short: "Make the data directory of a first manager from a backup",
		Long: "Restore makes a data directory from a backup, which must be empty or absent, and is there whole or not at all. `shunt manager`\n" +
			"starts with it as the first manager of the cluster; the others join it, with empty data directories. Nodes follow it when they reach it at an\n" +
			"address that they know. Nobody of the former cluster may run any more. With --etcd-endpoints the state goes into that etcd, where nothing may be\n" +
			"below the prefix, and the secrets into the data directory. docs/ops/backup.md tells what to do before and after.\n\n" +
			"With --new-ca the state gets another CA and another store.key than the backup's: after somebody had a manager's data directory.\n" +
			"Certificates, join tokens and access tokens of before open nothing then, and all nodes, managers and people need new ones\n" +
			"(docs/ops/captured-manager.md).",
		Example: "  shunt restore shunt.backup --data /var/lib/shunt/manager --name m1 --passphrase-file /etc/shunt/backup.passphrase\n" +
			"  shunt manager --data /var/lib/shunt/manager --name m1 --peer 10.99.0.11:8444\n" +
			"  shunt restore shunt.backup --data /var/lib/shunt/manager-new --name m1 --new-ca",
		Args: needs("a file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			a, b, err := f.unlock.read(args[0])
			if err != nil {
				return err
			}
			if f.newCA {
				if a, err = manager.NewSecrets(a, f.name, time.Now()); err != nil {
					return fmt.Errorf("restore %s: %w", args[0], err)
				}
			}
			epoch, err := f.restore(cmd.Context(), a, args[0])
			if err != nil {
				return fmt.Errorf("restore %s: %w", args[0], err)
			}
			b.warn(cmd.ErrOrStderr())
			if g.format != formatTable {
				return g.format.encode(cmd.OutOrStdout(), restored{b, f.data, epoch})
			}
			f.told(cmd.OutOrStdout(), a.Header, epoch)
			return nil
		},
	}
	cmd.Flags().StringVar(&f.data, "data", "", "data directory to make, empty or absent")
	cmd.Flags().StringVar(&f.name, "name", "", "name of the manager that will start with it (default: the host's name)")
	cmd.Flags().BoolVar(&f.newCA, "new-ca", false, "make another CA and another store.key: all certificates and tokens end")
	f.unlock.register(cmd.Flags())
	f.store.registerOutside(cmd.Flags())
	return cmd
}

// restored is the printed summary of a restore.
type restored struct {
	backupFile
	Data          string `json:"data"`
	RestoredEpoch int64  `json:"restored_epoch"`
}

func (f *restoreFlags) check() error {
	if f.data == "" {
		return usagef("--data is missing, must be the data directory to make")
	}
	if f.name == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--name: not given, and the host's name is unknown: %w", err)
		}
		f.name = name
	}
	return f.store.check(f.name)
}

// restore makes the data directory and fills the store.
func (f *restoreFlags) restore(ctx context.Context, a *backup.Archive, source string) (epoch int64, err error) {
	r := manager.Restoring{Name: f.name, Source: "file " + filepath.Base(source), Now: time.Now()}
	if r.From, err = os.Hostname(); err != nil {
		r.From = "an unknown machine"
	}
	r.By = fmt.Sprintf("uid %d", os.Getuid())
	if u, err := user.Current(); err == nil {
		r.By = u.Username
	}
	err = manager.BuildDataDir(f.data, func(dir *manager.DataDir) error {
		s, err := f.open(ctx, dir)
		if err != nil {
			return err
		}
		defer s.Close()
		r.Dir, r.Store = dir, s
		epoch, err = manager.Restore(ctx, r, a)
		if errors.Is(err, manager.ErrUsedStore) && len(f.store.outside.Endpoints) > 0 {
			return fmt.Errorf("--etcd-prefix: %q: must be one below which there is nothing yet: %w", f.store.outside.Prefix, err)
		}
		return err
	})
	return epoch, err
}

func (f *restoreFlags) open(ctx context.Context, dir *manager.DataDir) (store.Store, error) {
	if len(f.store.outside.Endpoints) > 0 {
		f.store.outside.Log = slog.New(slog.DiscardHandler)
		return etcd.OpenOutside(ctx, f.store.outside)
	}
	// It listens nowhere. The first start with --peer adds its address to the cluster of one.
	return etcd.Open(ctx, etcd.Options{Dir: dir.Etcd(), Name: f.name})
}

// told prints the next steps.
func (f *restoreFlags) told(w io.Writer, h backup.Header, epoch int64) {
	where := ""
	if len(f.store.outside.Endpoints) > 0 {
		where = " with the same --etcd- flags"
	}
	since := "since that backup, made again valid: access tokens that were revoked and nodes that were deleted; revoke and delete them again"
	if f.newCA {
		since = "it has another CA: no certificate, join token or access token of before is good. Nodes forward with their last plans, and need new tokens to join"
	}
	fmt.Fprintf(w, `restored the state of %s, revision %d, epoch %d, to %s; it begins after epoch %d
next: shunt manager --data %[4]s --name %[6]s%[7]s, at an address that the nodes know; then let the others join it
%[8]s
`, h.Time.UTC().Format(time.RFC3339), h.Revision, h.Epoch, f.data, epoch, f.name, where, since)
}
