package main

import (
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/shuntlb/shunt/internal/probe/means"
	"github.com/shuntlb/shunt/internal/probe/worker"
)

// programFlags configure external checks on a node: the directory of their programs and the user
// that runs them.
type programFlags struct {
	directory, user string
}

func (f *programFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.directory, "check-programs", "", "`directory` that the programs of external checks must be in, or below; only root may be able to write there (default: none, external checks are not made)")
	fl.StringVar(&f.user, "check-user", "", "`user` that programs of external checks run as: not root, and best one who does nothing else")
}

// programs checks the flags.
func (f *programFlags) programs() (means.Programs, error) {
	switch {
	case f.directory == "" && f.user == "":
		return means.Programs{}, nil
	case f.directory == "":
		return means.Programs{}, usagef("--check-user: --check-programs is missing")
	case !filepath.IsAbs(f.directory):
		return means.Programs{}, usagef("--check-programs: %q: must be the absolute path of a directory", f.directory)
	case f.user == "":
		return means.Programs{}, usagef("--check-programs: --check-user is missing")
	}
	user, err := worker.LookupUser(f.user)
	if err != nil {
		return means.Programs{}, usagef("--check-user: %w", err)
	}
	return means.Programs{Directory: f.directory, User: user}, nil
}
