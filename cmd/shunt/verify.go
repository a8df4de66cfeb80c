package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shuntlb/shunt/internal/backup"
	"github.com/shuntlb/shunt/internal/manager"
)

// unlockFlags hold the passphrase or identity that opens a backup.
type unlockFlags struct{ passphrase, identity string }

func (f *unlockFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.passphrase, "passphrase-file", "", "`file` with the passphrase that the backup was encrypted with")
	fl.StringVar(&f.identity, "identity-file", "", "`file` with the private key of age that it was encrypted for")
}

func (f *unlockFlags) unlock() (backup.Unlock, error) {
	flag, path, read := "--passphrase-file", f.passphrase, backup.PassphraseUnlock
	switch {
	case f.passphrase != "" && f.identity != "":
		return backup.Unlock{}, usagef("--identity-file: excludes --passphrase-file")
	case f.identity != "":
		flag, path, read = "--identity-file", f.identity, backup.IdentityUnlock
	case f.passphrase == "":
		return backup.Unlock{}, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return backup.Unlock{}, fmt.Errorf("%s: %w", flag, err)
	}
	u, err := read(string(content))
	if err != nil {
		return u, fmt.Errorf("%s %s: %w", flag, path, err)
	}
	return u, nil
}

// read reads a backup from which a cluster can be restored.
func (f *unlockFlags) read(path string) (*backup.Archive, backupFile, error) {
	u, err := f.unlock()
	if err != nil {
		return nil, backupFile{}, err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, backupFile{}, err
	}
	b := backupFile{File: path, Encrypted: backup.Sealed(content)}
	plain, err := u.Open(content)
	var a *backup.Archive
	if err == nil {
		a, err = backup.Decode(plain)
	}
	if err == nil {
		err = manager.CheckBackup(a)
	}
	if err != nil {
		return nil, b, fmt.Errorf("%s: %w", path, err)
	}
	b.Header = a.Header
	faults, err := manager.ForeignInBackup(a)
	if err != nil {
		return nil, b, fmt.Errorf("%s: %w", path, err)
	}
	for _, fault := range faults {
		b.Foreign = append(b.Foreign, fault.String())
	}
	return a, b, nil
}

// warn writes a line for each field of the backup's objects that names another party's address.
func (b backupFile) warn(w io.Writer) {
	for _, fault := range b.Foreign {
		fmt.Fprintf(w, "warning: %s\n", fault)
	}
}

func newVerify(g *globals) *cobra.Command {
	var unlock unlockFlags
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Check a backup and tell what is in it",
		Long: "Verify reads a backup as restore does and writes nothing: its checksum, that its secrets belong together, and every key. The\n" +
			"exit code is 1 when it could not be restored. It needs no manager. It warns of fields that name addresses of another Tenant, or of the load\n" +
			"balancer's machines, which an apply would refuse.",
		Example: "  shunt verify shunt.backup --passphrase-file /etc/shunt/backup.passphrase",
		Args:    needs("a file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, b, err := unlock.read(args[0])
			if err != nil {
				return err
			}
			b.warn(cmd.ErrOrStderr())
			return g.printBackup(cmd.OutOrStdout(), b)
		},
	}
	unlock.register(cmd.Flags())
	return cmd
}

// print writes one line per property.
func (b backupFile) print(w io.Writer) error {
	encrypted := "no"
	if b.Encrypted {
		encrypted = "yes"
	}
	rows := [][]string{
		{"file", b.File},
		{"encrypted", encrypted},
		{"time", b.Time.UTC().Format(time.RFC3339)},
		{"cluster", b.Cluster},
		{"CA", b.CA},
		{"version", b.Version},
		{"schema", b.Schema},
		{"revision", strconv.FormatInt(b.Revision, 10)},
		{"epoch", strconv.FormatInt(b.Epoch, 10)},
		{"keys", strconv.Itoa(b.Keys)},
	}
	for _, what := range slices.Sorted(maps.Keys(b.Counts)) {
		rows = append(rows, []string{"  " + what, strconv.Itoa(b.Counts[what])})
	}
	return table(w, rows)
}
