package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/lb"
)

func newCheck(g *globals) *cobra.Command {
	var (
		files  []string
		source string
		whole  bool
	)
	cmd := &cobra.Command{
		Use:   "check -f FILE|DIR|-",
		Short: "Check files without a manager",
		Long: "Check reads files as apply does and reports the same faults, with file, line and column: those of each object, and those\n" +
			"between the objects of the files. It needs no manager and changes nothing. Objects that are in none of the files may exist\n" +
			"elsewhere: without a Network in the files VIPs are compared with none. With --whole the files are everything there is, as for\n" +
			"shunt run.\n\n" +
			"Faults that only the manager can find, such as a VIP of a stored service, are shown by shunt diff.\n\n" +
			"Exit codes: 0 no fault, 1 faults, 2 wrong usage.",
		Example: "  shunt check -f web.yaml\n" +
			"  shunt check -f objects/ --whole\n" +
			"  generate | shunt check -f -",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if whole && source != defaultSource {
				return usagef("--whole: must be used with source %s: files of others may hold parts of objects", defaultSource)
			}
			docs, err := readDocuments(cmd.Context(), cmd.InOrStdin(), files, lb.Extent(source != defaultSource))
			if err != nil {
				return err
			}
			if err := docs.agree(source != defaultSource, whole); err != nil {
				return err
			}
			return g.printChecked(cmd.OutOrStdout(), docs)
		},
	}
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "file, directory of .yaml files, or - for standard input (repeatable)")
	cmd.Flags().StringVar(&source, "source", defaultSource, "source that will apply the files; those of any other than "+defaultSource+" may hold parts of objects, of which each is checked by itself")
	cmd.Flags().BoolVar(&whole, "whole", false, "the files are everything there is: what they do not have is missing")
	return cmd
}

// agree returns the faults between the documents' objects. Parts of objects are not checked. whole
// means that the documents hold every object of the cluster.
func (ds *documents) agree(parts, whole bool) error {
	if parts {
		return nil
	}
	objects := make([]lb.Object, len(ds.all))
	for i, d := range ds.all {
		objects[i] = d.Object
	}
	validate := lb.ValidatePart
	if whole {
		validate = lb.ValidateState
	}
	faults := validate(objects)
	if len(faults) == 0 {
		return nil
	}
	return ds.locate(&lb.Error{Violations: faults})
}

// checked is a valid object in the output.
type checked struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// printChecked prints one line per object: "services/web valid".
func (g *globals) printChecked(w io.Writer, docs *documents) error {
	out := make([]checked, len(docs.all))
	for i, d := range docs.all {
		out[i] = checked{string(d.Object.Kind()), d.Object.ObjectName()}
	}
	if g.format != formatTable {
		return g.format.encode(w, struct {
			Valid []checked `json:"valid"`
		}{out})
	}
	for _, o := range out {
		if _, err := fmt.Fprintf(w, "%s valid\n", lb.Ref(lb.Kind(o.Kind), o.Name)); err != nil {
			return err
		}
	}
	return nil
}
