package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

func newRotate(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "rotate", Short: "Replace secrets of the cluster"}
	cmd.AddCommand(newRotateCA(g), newRotateKeys(g), newRotateRing(g))
	return cmd
}

// scopesOrAll refuses a command line with neither VIPs or services nor --all, or with both.
func scopesOrAll(args []string, all bool) error {
	switch {
	case all && len(args) > 0:
		return usagef("--all: must not come with %q", args[0])
	case !all && len(args) == 0:
		return usagef("needs VIPs or services, or --all")
	}
	return nil
}

func newRotateKeys(g *globals) *cobra.Command {
	var all bool
	var purpose string
	cmd := &cobra.Command{
		Use:   "keys VIP|SERVICE… | --all",
		Short: "Replace keys of cookies and of QUIC connection ids",
		Long: "Rotate keys begins to replace the keys of the VIPs, and of the connection ids of their services: muxes get the new keys, then\n" +
			"hosts stamp with them, and the former ones are read for --key-rest of the manager. It does not wait: shunt get keys tells how\n" +
			"far it is. Servers of quic endpoints must fetch their new configuration (shunt get quic) before the former key goes.\n\n" +
			"What is being rotated, or whose former key is still read, is refused; with --all it is left as it is.",
		Example: "  shunt rotate keys 203.0.113.10\n  shunt rotate keys web --purpose cid\n  shunt rotate keys --all",
		Args: func(_ *cobra.Command, args []string) error {
			if purpose != "" && purpose != "cookie" && purpose != "cid" {
				return usagef("--purpose: %q: must be cookie or cid", purpose)
			}
			return scopesOrAll(args, all)
		},
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return g.names(cmd.Context(), lb.KindService), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				res, err := c.RotateKeys(ctx, connect.NewRequest(&apiv1.RotateKeysRequest{Scopes: args, All: all, Purpose: purpose}))
				if err != nil {
					return err
				}
				return g.printRotation(cmd.OutOrStdout(), res.Msg)
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all keys that can be rotated now")
	cmd.Flags().StringVar(&purpose, "purpose", "", "only keys of cookie or cid (QUIC connection ids)")
	_ = cmd.RegisterFlagCompletionFunc("purpose", cobra.FixedCompletions([]string{"cookie", "cid"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (g *globals) printRotation(w io.Writer, res *apiv1.RotateKeysResponse) error {
	if g.format != formatTable {
		return g.format.encode(w, map[string]any{"revision": res.GetRevision(), "keys": keyRecords(res.GetKeys()), "waiting": keyRecords(res.GetWaiting())})
	}
	for _, k := range res.GetKeys() {
		if _, err := fmt.Fprintf(w, "%s of %s: rotation to epoch %d began\n", purposeWords(k.GetPurpose()), k.GetScope(), newestEpoch(k)); err != nil {
			return err
		}
	}
	for _, k := range res.GetWaiting() {
		if _, err := fmt.Fprintf(w, "%s of %s: %s\n", purposeWords(k.GetPurpose()), k.GetScope(), k.GetWrong()); err != nil {
			return err
		}
	}
	if len(res.GetKeys())+len(res.GetWaiting()) == 0 {
		_, err := fmt.Fprintln(w, "there are no keys")
		return err
	}
	return nil
}

func purposeWords(purpose string) string {
	if purpose == "cid" {
		return "connection ids"
	}
	return "cookies"
}

func newestEpoch(k *apiv1.KeySet) uint32 {
	newest := uint32(0)
	for _, e := range k.GetEpochs() {
		newest = max(newest, e.GetEpoch())
	}
	return newest
}

// keyRecord is a row of shunt get keys.
type keyRecord struct {
	Purpose string        `json:"purpose"`
	Scope   string        `json:"scope"`
	Service string        `json:"service"`
	Phase   string        `json:"phase"`
	Since   string        `json:"since"`
	Epochs  []epochRecord `json:"epochs"`
	// WaitsFor lists the first of the nodes that are waited for. Waits is their number.
	WaitsFor []string `json:"waitsFor"`
	Waits    uint32   `json:"waits"`
	// Due is when the previous key is removed or the next rotation begins. It is absent when no
	// time is set.
	Due string `json:"due,omitempty"`
	// Idle means that no endpoint needs the keys now.
	Idle  bool   `json:"idle"`
	Wrong string `json:"wrong,omitempty"`
}

type epochRecord struct {
	Epoch uint32 `json:"epoch"`
	Made  string `json:"made"`
	// Mints means that new cookies or connection ids are made with this key.
	Mints bool `json:"mints"`
}

func keyRecords(keys []*apiv1.KeySet) []keyRecord {
	out := []keyRecord{}
	for _, k := range keys {
		r := keyRecord{
			Purpose: k.GetPurpose(), Scope: k.GetScope(), Service: k.GetService(), Phase: k.GetPhase(), Since: timeText(k.GetSince()), Epochs: []epochRecord{},
			WaitsFor: append([]string{}, k.GetWaitsFor()...), Waits: k.GetWaits(), Due: timeText(k.GetDue()), Idle: k.GetIdle(), Wrong: k.GetWrong(),
		}
		for _, e := range k.GetEpochs() {
			r.Epochs = append(r.Epochs, epochRecord{e.GetEpoch(), timeText(e.GetMade()), e.GetMints()})
		}
		out = append(out, r)
	}
	return out
}

// timeText returns a time as text, or "" if t is nil.
func timeText(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}

// getKeys prints the keys of a scope, or all keys.
func (c *client) getKeys(ctx context.Context, g *globals, w io.Writer, scope string) error {
	req := &apiv1.ListKeysRequest{}
	if scope != "" {
		req.Scopes = []string{scope}
	}
	res, err := c.ListKeys(ctx, connect.NewRequest(req))
	if err != nil {
		return err
	}
	if g.format != formatTable {
		return g.format.encode(w, keyRecords(res.Msg.GetKeys()))
	}
	rows := [][]string{{"PURPOSE", "SCOPE", "SERVICE", "EPOCHS", "AGE", "PHASE", "WAITS-FOR", "DUE"}}
	for _, k := range res.Msg.GetKeys() {
		rows = append(rows, g.keyRow(k))
	}
	return table(w, rows)
}

func (g *globals) keyRow(k *apiv1.KeySet) []string {
	var epochs, ages []string
	for _, e := range k.GetEpochs() {
		text := fmt.Sprint(e.GetEpoch())
		if e.GetMints() && len(k.GetEpochs()) > 1 {
			text += "*"
		}
		epochs, ages = append(epochs, text), append(ages, shortAge(g.now().Sub(e.GetMade().AsTime())))
	}
	phase := k.GetPhase()
	if k.GetIdle() {
		phase = "idle"
	}
	waits := strings.Join(k.GetWaitsFor(), ",")
	if more := int(k.GetWaits()) - len(k.GetWaitsFor()); more > 0 {
		waits = strings.TrimPrefix(fmt.Sprintf("%s and %d nodes", waits, more), " and ")
	}
	return []string{k.GetPurpose(), k.GetScope(), k.GetService(), strings.Join(epochs, ","), strings.Join(ages, ","), phase, waits, timeText(k.GetDue())}
}

// shortAge returns an age in its largest units: "3d4h", "2h5m", "40s".
func shortAge(d time.Duration) string {
	const day = 24 * time.Hour
	switch d = max(0, d); {
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}
