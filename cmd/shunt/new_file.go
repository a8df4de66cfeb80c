package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
)

// registerTokenFile adds the flag that names a new file for a token.
func registerTokenFile(fl *pflag.FlagSet, file *string) {
	fl.StringVarP(file, "file", "f", "", "new `file` for the token, with mode 0600 (default: standard output)")
}

// intoNewFile writes the line that get returns to a new file of mode 0600. It creates the file
// before it calls get, so that no result of get is lost. It removes the file after an error.
func intoNewFile(file string, get func() (string, error)) (err error) {
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("--file: must be a new file: %w", err)
	}
	defer func() {
		if err = errors.Join(err, out.Close()); err != nil {
			os.Remove(file)
		}
	}()
	text, err := get()
	if err == nil {
		_, err = fmt.Fprintln(out, text)
	}
	return err
}
