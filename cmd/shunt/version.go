package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// version is set by the build: -ldflags "-X main.version=…".
var version = "dev"

// storeSchema is the newest schema that managers of this build support. 0 means manager.Schema.
// Tests of upgrades set it.
var storeSchema int64

// versions is the output of version. Server is absent if none is configured.
type versions struct {
	Client build  `json:"client"`
	Server *build `json:"server,omitempty"`
}

type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go,omitempty"`
}

func newVersion(g *globals) *cobra.Command {
	var clientOnly bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Tell the versions of this binary and of the manager",
		Long:    "Version prints the version of this binary and, when a manager is configured, the manager's. The exit code is 1 when\nthat one cannot be asked.",
		Example: "  shunt version\n  shunt version --client -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{Client: build{version, commit(), runtime.Version()}}
			var failed error
			if !clientOnly {
				v.Server, failed = g.serverVersion(cmd.Context())
			}
			if errors.Is(failed, errNoConfig) {
				failed = nil
			}
			if err := g.printVersions(cmd.OutOrStdout(), v); err != nil {
				return err
			}
			return failed
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "only this binary's")
	return cmd
}

func (g *globals) serverVersion(ctx context.Context) (*build, error) {
	var b *build
	err := g.call(ctx, func(ctx context.Context, c *client) error {
		response, err := c.Version(ctx, connect.NewRequest(&apiv1.VersionRequest{}))
		if err == nil {
			b = &build{Version: response.Msg.GetVersion(), Commit: response.Msg.GetCommit()}
		}
		return err
	})
	return b, err
}

func (g *globals) printVersions(w io.Writer, v versions) error {
	if g.format != formatTable {
		return g.format.encode(w, v)
	}
	rows := [][]string{{"PART", "VERSION", "COMMIT"}, {"client", v.Client.Version, v.Client.Commit}}
	if v.Server != nil {
		rows = append(rows, []string{"server", v.Server.Version, v.Server.Commit})
	}
	if err := table(w, rows); err != nil {
		return fmt.Errorf("print versions: %w", err)
	}
	return nil
}

// versionTemplate returns the line that `shunt --version` prints: the version and, if the build has
// it, the commit of this binary. It calls no manager.
func versionTemplate() string {
	if c := commit(); c != "" {
		return "shunt " + version + " (" + c + ")\n"
	}
	return "shunt " + version + "\n"
}

// builtFrom is the commit that the build's flags set. If it is empty, the Go tool may have recorded
// it.
var builtFrom string

// commit returns the commit that this binary was built from, or "" if it is not recorded.
func commit() string {
	if builtFrom != "" {
		return builtFrom
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}

// shortCommit returns the first twelve digits of a commit, to fit into tables.
func shortCommit(commit string) string { return commit[:min(len(commit), 12)] }
