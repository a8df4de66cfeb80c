package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/backup"
	"github.com/shuntlb/shunt/internal/manager"
)

// lockFlags holds the flags that select the encryption of a backup.
type lockFlags struct {
	passphrase     string
	recipients     []string
	recipientsFile string
	plain          bool
}

func (f *lockFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.passphrase, "passphrase-file", "", "`file` with a passphrase, one line of at least 12 bytes, to encrypt with")
	fl.StringArrayVar(&f.recipients, "recipient", nil, "public `key` of age (age1…) to encrypt for; may be given several times")
	fl.StringVar(&f.recipientsFile, "recipients-file", "", "`file` with such keys, one a line")
	fl.BoolVar(&f.plain, "plain", false, "do not encrypt: the file holds the key of the CA, and whoever reads it has the cluster")
}

// lock reads the keys.
func (f *lockFlags) lock() (backup.Lock, error) {
	keys := len(f.recipients) > 0 || f.recipientsFile != ""
	ways := 0
	for _, way := range []bool{f.passphrase != "", keys, f.plain} {
		if way {
			ways++
		}
	}
	switch {
	case ways != 1:
		return backup.Lock{}, usagef("one of --passphrase-file, --recipient or --recipients-file, and --plain must be given: a backup holds the key of the CA")
	case f.plain:
		return backup.Lock{}, nil
	case f.passphrase != "":
		return lockBy(backup.PassphraseLock, "--passphrase-file", f.passphrase)
	}
	text := strings.Join(f.recipients, "\n")
	if f.recipientsFile == "" {
		return named("--recipient", "")(backup.RecipientLock(text))
	}
	return lockBy(func(file string) (backup.Lock, error) { return backup.RecipientLock(text + "\n" + file) }, "--recipients-file", f.recipientsFile)
}

func lockBy(read func(string) (backup.Lock, error), flag, path string) (backup.Lock, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return backup.Lock{}, fmt.Errorf("%s: %w", flag, err)
	}
	return named(flag, path)(read(string(content)))
}

// named puts a flag before an error.
func named(flag, path string) func(backup.Lock, error) (backup.Lock, error) {
	return func(l backup.Lock, err error) (backup.Lock, error) {
		if err != nil {
			err = fmt.Errorf("%s: %w", strings.TrimSpace(flag+" "+path), err)
		}
		return l, err
	}
}

func newBackup(g *globals) *cobra.Command {
	var (
		file string
		lock lockFlags
	)
	cmd := &cobra.Command{
		Use:   "backup -f FILE",
		Short: "Save all state of the managers in one file",
		Long: "Backup writes everything that the managers know, as of one moment, into a file: objects and what was decided of them, keys,\n" +
			"tokens, events, the audit log, and the CA with its key. Any manager makes it, and nothing waits for it. The file appears when it\n" +
			"is whole and was checked. It is encrypted in the format of age, here and not by the manager. docs/ops/backup.md tells more.",
		Example: "  shunt backup -f shunt.backup --passphrase-file /etc/shunt/backup.passphrase\n" +
			"  shunt backup -f shunt.backup --recipient age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usagef("-f is missing, must be the file to write")
			}
			path, err := replaceable(file)
			if err != nil {
				return err
			}
			l, err := lock.lock()
			if err != nil {
				return err
			}
			c, err := g.connect()
			if err != nil {
				return err
			}
			content, err := c.backup(cmd.Context())
			if err != nil {
				return c.explain(err)
			}
			a, err := backup.Decode(content)
			if err != nil {
				return fmt.Errorf("what the manager sent %w", err)
			}
			if err := manager.CheckBackup(a); err != nil {
				return fmt.Errorf("what the manager sent cannot be restored by this version: %w", err)
			}
			if err := writeBackup(path, l, content); err != nil {
				return err
			}
			return g.printBackup(cmd.OutOrStdout(), backupFile{File: file, Encrypted: !l.None(), Header: a.Header})
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "file to write; one that is there is replaced")
	lock.register(cmd.Flags())
	return cmd
}

// backup receives a complete backup from a manager. It has no deadline because a lost manager is
// detected.
func (c *client) backup(ctx context.Context) (content []byte, err error) {
	err = c.servers.persist(ctx, true, func() error {
		var whole bytes.Buffer
		stream, err := c.Backup(ctx, connect.NewRequest(&apiv1.BackupRequest{}))
		if err != nil {
			return err
		}
		defer stream.Close()
		for stream.Receive() {
			whole.Write(stream.Msg().GetChunk())
		}
		content = whole.Bytes()
		return stream.Err()
	})
	return content, err
}

// replaceable returns the file to write, with symbolic links resolved. Anything but a regular file
// is an error before any request, because root could otherwise replace /dev/null by a file.
func replaceable(path string) (string, error) {
	if dir, err := os.Stat(filepath.Dir(path)); err != nil || !dir.IsDir() {
		return "", usagef("-f: %s: must be in a directory that is there", path)
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && path != "-" {
		return path, nil
	}
	if err != nil || !info.Mode().IsRegular() {
		return "", usagef("-f: %s: must be a file, or absent", path)
	}
	return filepath.EvalSymlinks(path)
}

// writeBackup replaces the file atomically.
func writeBackup(path string, l backup.Lock, content []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // no effect after the rename
	err = l.Seal(f, content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return cmp.Or(dir.Sync(), dir.Close())
}

// backupFile is the printed summary of a backup.
type backupFile struct {
	File      string `json:"file"`
	Encrypted bool   `json:"encrypted"`
	backup.Header
	// Foreign lists the fields that name addresses of others, which an apply would refuse.
	Foreign []string `json:"foreign,omitempty"`
}

func (g *globals) printBackup(w io.Writer, b backupFile) error {
	if g.format != formatTable {
		return g.format.encode(w, b)
	}
	return b.print(w)
}
