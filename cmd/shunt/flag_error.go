package main

import (
	"cmp"
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shuntlb/shunt/internal/lb"
)

// allowedTexts describes the allowed values of flag types. Our own types describe them in their
// errors.
var allowedTexts = map[string]string{
	"bool":        "must be true or false",
	"duration":    "must be a duration such as 30s or 1m30s",
	"int":         "must be a whole number",
	"uint32":      "must be a whole number, 0 or more",
	"uint64":      "must be a whole number, 0 or more",
	"stringSlice": "must be a list separated by commas",
}

// flagError makes a wrong flag a usageError. A flag unknown to the root may follow a misspelt
// command.
func flagError(cmd *cobra.Command, err error) error {
	if wrong := (*pflag.InvalidValueError)(nil); errors.As(err, &wrong) {
		f := wrong.GetFlag()
		return usagef("--%s: %q: %s", f.Name, wrong.GetValue(), cmp.Or(allowedTexts[f.Value.Type()], wrong.Unwrap().Error()))
	}
	if !cmd.HasParent() && cmd.Flags().NArg() > 0 {
		return subcommand(cmd, cmd.Flags().Args())
	}
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, "--"+f.Name)
			}
		})
		return usagef("%w%s", err, lb.MeantFor(unknown.GetSpecifiedName(), names))
	}
	return usageError{err}
}
