package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	yaml "github.com/goccy/go-yaml"
	"github.com/spf13/pflag"
)

// globals holds the flags of every command that calls a manager.
type globals struct {
	server string // URLs; overrides the configuration's
	config string // file of the client configuration
	lab    string // name of a lab on this machine
	format format

	// now returns the time. note, if not nil, prints a line on the command's standard error.
	now  func() time.Time
	note func(string)
	// warned is set after the warning about the client's certificate.
	warned bool
}

// register adds the flags.
func (g *globals) register(flags *pflag.FlagSet) {
	flags.StringVar(&g.server, "server", "", "manager to speak with, such as https://10.99.0.11:8443, or several separated by commas (default: the configuration's)")
	flags.StringVar(&g.config, "config", "", "client configuration file (default: $SHUNT_CONFIG, ~/.config/shunt/config.yaml, /var/lib/shunt/manager/admin.yaml)")
	flags.Var((*labNameValue)(&g.lab), "lab", "speak with the managers of this lab as its admin")
	flags.VarP(&g.format, "output", "o", "how to print: table, json or yaml")
}

// format is the output format.
type format string

const (
	formatTable format = "table"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
)

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *format) Type() string { return "format" }

// Set implements pflag.Value.
func (f *format) Set(s string) error {
	switch format(s) {
	case formatTable, formatJSON, formatYAML:
		*f = format(s)
		return nil
	}
	return fmt.Errorf("must be table, json or yaml")
}

// table prints rows in columns two spaces apart; the first row is the heading.
func table(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if cell == "" {
				cell = "-"
			}
			if i > 0 {
				fmt.Fprint(tw, "\t")
			}
			fmt.Fprint(tw, cell)
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

// encode prints v, which encoding/json can print, as JSON or YAML.
func (f format) encode(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	if f == formatYAML {
		if text, err = yaml.JSONToYAML(text); err != nil {
			return fmt.Errorf("encode output: %w", err)
		}
		_, err = w.Write(text)
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}
