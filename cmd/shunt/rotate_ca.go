package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

const (
	// caPoll is the poll interval of a CA replacement.
	caPoll = 300 * time.Millisecond
	// caTimeout is how long the command waits for one phase by default.
	caTimeout = 10 * time.Minute
)

// Phases of RotateCAResponse.
const (
	caTrust = "trust"
	caIssue = "issue"
	caDone  = "done"
)

// caFlags holds the flags of shunt rotate ca.
type caFlags struct {
	without              []string
	yes, status, keepOld bool
	timeout              time.Duration
}

func newRotateCA(g *globals) *cobra.Command {
	var f caFlags
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Replace the CA, its key and all that it signed, with managers and nodes up",
		Long: "Rotate ca makes a new CA and a new key that seals the store, and replaces all certificates of managers, nodes, the store's members and\n" +
			"the administrator. Managers start anew one after the other, twice; traffic is not touched. Afterwards nothing that the former CA signed\n" +
			"opens anything, and no access token or join token of before. Then it rotates the keys of cookies and connection ids, and the ring keys,\n" +
			"unless --keep-keys is given: who had a manager had these, too.\n\n" +
			"It goes by phases, each of which waits for all managers and nodes: trust (they accept both CAs), issue (the new CA signs), retire (they\n" +
			"accept the new one alone). All of it is stored: when the command ends before, run it again, and it goes on. It refuses to begin while a\n" +
			"manager or node is away or runs a build that cannot follow. --without leaves a node out, which needs a new join token afterwards.\n\n" +
			"The certificate and CA in the client configuration are replaced, too: it must be a file that can be written. --yes is needed while there\n" +
			"are access tokens and certificates of people and programs, which end, and for ring keys of endpoints whose connections would break.",
		Example: "  shunt rotate ca\n  shunt rotate ca --without mux9 --yes\n  shunt rotate ca --status",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.timeout <= 0 {
				return usagef("--timeout: %s: must be more than 0", f.timeout)
			}
			if f.status && (f.yes || f.keepOld || len(f.without) > 0) {
				return usagef("--status: must not come with --yes, --keep-keys or --without")
			}
			if f.status {
				return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
					res, err := c.RotateCA(ctx, connect.NewRequest(&apiv1.RotateCARequest{}))
					if err != nil {
						return err
					}
					return g.printCA(cmd.OutOrStdout(), res.Msg)
				})
			}
			r := &caRotation{g: g, flags: f, out: cmd.ErrOrStderr()}
			res, err := r.run(cmd.Context())
			if err != nil {
				return err
			}
			if f.keepOld {
				return g.printCA(cmd.OutOrStdout(), res)
			}
			if err := r.rotateKeys(cmd.Context()); err != nil {
				return err
			}
			return g.printCA(cmd.OutOrStdout(), res)
		},
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&f.without, "without", nil, "`nodes` that are not waited for; they need new join tokens afterwards")
	fl.BoolVar(&f.yes, "yes", false, "also when access of people and programs ends, and ring keys of endpoints whose connections break")
	fl.BoolVar(&f.status, "status", false, "only print how far the replacement is")
	fl.BoolVar(&f.keepOld, "keep-keys", false, "leave the keys of cookies, connection ids and rings as they are")
	fl.DurationVar(&f.timeout, "timeout", caTimeout, "how long to wait for one phase; the replacement goes on when the command is run again")
	_ = cmd.RegisterFlagCompletionFunc("without", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return g.names(cmd.Context(), lb.KindNode), cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

// caRotation drives one replacement of the CA.
type caRotation struct {
	g     *globals
	flags caFlags
	out   io.Writer
	// printed is the last line of progress.
	printed string
	// newCertificate means that the client configuration has a certificate of the new CA.
	newCertificate bool
}

// run starts a replacement, or resumes the one under way, until it is done.
func (r *caRotation) run(ctx context.Context) (*apiv1.RotateCAResponse, error) {
	if err := r.writable(); err != nil {
		return nil, err
	}
	req := &apiv1.RotateCARequest{Begin: true, Without: r.flags.without, Force: r.flags.yes}
	phase, deadline := "", r.g.now().Add(r.flags.timeout)
	for {
		res, err := r.ask(ctx, req)
		var failed *connect.Error
		switch {
		case err == nil:
			req = &apiv1.RotateCARequest{}
			if phase != res.GetPhase() {
				phase, deadline = res.GetPhase(), r.g.now().Add(r.flags.timeout)
			}
			r.printProgress(res)
			if phase == caDone {
				return res, nil
			}
			if req, err = r.next(ctx, res); err != nil {
				return nil, err
			}
		case ctx.Err() != nil:
			return nil, err
		case !errors.As(err, &failed) || !retryable(failed):
			return nil, err
		case phase == "" && otherCA(err):
			return nil, fmt.Errorf("%w: the client configuration is of another CA than the managers: take the admin.yaml of a manager", err)
		}
		if r.g.now().After(deadline) {
			return nil, r.late(res, err)
		}
		select {
		case <-time.After(caPoll):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %s", ctx.Err(), goOn(phase))
		}
	}
}

// retryable reports whether a call failed temporarily, because managers restart one after the
// other.
func retryable(err *connect.Error) bool {
	switch err.Code() {
	case connect.CodeUnavailable, connect.CodeAborted, connect.CodeDeadlineExceeded, connect.CodeUnknown, connect.CodeInternal, connect.CodeCanceled:
		return true
	}
	return false
}

// otherCA reports whether this side or a manager refused the other's certificate.
func otherCA(err error) bool {
	return errors.As(err, new(x509.UnknownAuthorityError)) || strings.Contains(err.Error(), "remote error: tls: ")
}

// ask calls RotateCA with the current client configuration.
func (r *caRotation) ask(ctx context.Context, req *apiv1.RotateCARequest) (res *apiv1.RotateCAResponse, err error) {
	c, err := r.g.connect()
	if err != nil {
		return nil, err
	}
	defer c.idle()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := c.RotateCA(ctx, connect.NewRequest(req))
	if err != nil {
		if call := new(connect.Error); errors.As(err, &call) && !retryable(call) {
			return nil, c.explain(err)
		}
		return nil, err
	}
	return answer.Msg, nil
}

// next stores the CA and certificate that the caller needs for the next phase, and returns the
// request that allows it.
func (r *caRotation) next(ctx context.Context, res *apiv1.RotateCAResponse) (*apiv1.RotateCARequest, error) {
	req := &apiv1.RotateCARequest{}
	switch res.GetPhase() {
	case caTrust:
		if err := r.storeCA(res.GetCa()); err != nil {
			return nil, err
		}
		req.Through = caIssue
	case caIssue:
		if err := r.storeCA(res.GetCa()); err != nil {
			return nil, err
		}
		if !r.newCertificate {
			if err := r.renew(ctx, res); err != nil {
				return nil, err
			}
		}
		if r.newCertificate {
			req.Through = "retire"
		}
	default:
		return req, r.storeCA(res.GetCa())
	}
	if res.GetThrough() == req.Through {
		req.Through = ""
	}
	return req, nil
}

// printProgress prints a line of progress if it differs from the last one.
func (r *caRotation) printProgress(res *apiv1.RotateCAResponse) {
	line := "phase " + res.GetPhase()
	if waits := waitTexts(res); len(waits) > 0 {
		line += ", waits for " + strings.Join(waits, ", ")
	}
	if line != r.printed {
		r.printed = line
		fmt.Fprintln(r.out, line)
	}
}

// goOn returns how to continue from a phase. The last phase ends by itself. A call after its end
// would start another replacement.
func goOn(phase string) string {
	if phase == string(plan.CARetire) {
		return "the replacement ends by itself: look with shunt rotate ca --status, then run shunt rotate keys --all and shunt rotate ring --all"
	}
	return "run shunt rotate ca again to go on"
}

// late returns the error of a phase that took too long. It names the nodes that are waited for and
// how to continue.
func (r *caRotation) late(res *apiv1.RotateCAResponse, err error) error {
	if res == nil {
		return fmt.Errorf("no answer for %s: %w; %s", r.flags.timeout, err, goOn(""))
	}
	var on []string
	for _, w := range res.GetWaits() {
		switch w.GetKind() {
		case "node":
			on = append(on, fmt.Sprintf("node %s %s: bring it back, or leave it out (--without %s): then it needs a new join token", w.GetName(), w.GetReason(), w.GetName()))
		case "manager":
			on = append(on, fmt.Sprintf("manager %s %s: start it, or remove it (shunt member remove %s; with an outside etcd shunt access revoke managers/%s)", w.GetName(), w.GetReason(), w.GetName(), w.GetName()))
		}
	}
	if more := int(res.GetWaiting()) - len(res.GetWaits()); more > 0 {
		on = append(on, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("phase %s takes longer than %s; %s\n%s", res.GetPhase(), r.flags.timeout, goOn(res.GetPhase()), strings.Join(on, "\n"))
}

// waitTexts returns the first few nodes that a phase waits for.
func waitTexts(res *apiv1.RotateCAResponse) (out []string) {
	const few = 5
	for _, w := range res.GetWaits() {
		if w.GetKind() == "command" {
			continue // this command itself
		}
		if len(out) == few {
			return append(out, fmt.Sprintf("%d more", int(res.GetWaiting())-few))
		}
		out = append(out, strings.TrimSpace(w.GetKind()+" "+w.GetName())+" ("+w.GetReason()+")")
	}
	return out
}

// rotateKeys replaces the other secrets that managers have.
func (r *caRotation) rotateKeys(ctx context.Context) error {
	err := r.g.call(ctx, func(ctx context.Context, c *client) error {
		res, err := c.RotateKeys(ctx, connect.NewRequest(&apiv1.RotateKeysRequest{All: true}))
		if err != nil {
			return err
		}
		fmt.Fprintf(r.out, "keys of cookies and connection ids: %d rotations began, %d must wait (shunt get keys)\n", len(res.Msg.GetKeys()), len(res.Msg.GetWaiting()))
		if len(res.Msg.GetWaiting()) > 0 {
			fmt.Fprintln(r.out, "  later: shunt rotate keys --all")
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("the CA is replaced, keys are not: shunt rotate keys --all: %w", err)
	}
	err = r.g.call(ctx, func(ctx context.Context, c *client) error {
		res, err := c.RotateRing(ctx, connect.NewRequest(&apiv1.RotateRingRequest{All: true, Force: r.flags.yes}))
		if connect.CodeOf(err) == connect.CodeFailedPrecondition {
			fmt.Fprintf(r.out, "ring keys stay: %s\n  later: shunt rotate ring --all --yes\n", c.explain(err))
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(r.out, "ring keys: %d endpoints have new ones\n", res.Msg.GetEndpoints())
		return nil
	})
	if err != nil {
		return fmt.Errorf("the CA is replaced, ring keys are not: shunt rotate ring --all: %w", err)
	}
	return nil
}

// caRecord is the output of shunt rotate ca in formats other than a table.
type caRecord struct {
	Phase   string         `json:"phase"`
	Began   string         `json:"began,omitempty"`
	Since   string         `json:"since,omitempty"`
	Waits   []caWaitRecord `json:"waits"`
	Waiting uint32         `json:"waiting"`
	Without []string       `json:"without"`
	Former  string         `json:"former,omitempty"`
	Next    string         `json:"next,omitempty"`
	CA      string         `json:"ca"`
}

type caWaitRecord struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

func (g *globals) printCA(w io.Writer, res *apiv1.RotateCAResponse) error {
	if g.format != formatTable {
		out := caRecord{
			Phase: cmp.Or(res.GetPhase(), "none"), Began: timeText(res.GetBegan()), Since: timeText(res.GetSince()), Waits: []caWaitRecord{}, Waiting: res.GetWaiting(),
			Without: append([]string{}, res.GetWithout()...), Former: res.GetFormer(), Next: res.GetNext(), CA: string(res.GetCa()),
		}
		for _, x := range res.GetWaits() {
			out.Waits = append(out.Waits, caWaitRecord{x.GetKind(), x.GetName(), x.GetReason()})
		}
		return g.format.encode(w, out)
	}
	var lines []string
	switch res.GetPhase() {
	case "":
		lines = append(lines, "the CA was never replaced")
	case caDone:
		lines = append(lines, "the CA was replaced, since "+timeText(res.GetSince()))
		without := slices.Clone(res.GetWithout())
		slices.Sort(without)
		for _, node := range without {
			lines = append(lines, fmt.Sprintf("node %s was left out: it needs a new join token: shunt token create --node %s --role ROLE", node, node))
		}
	default:
		lines = append(lines, fmt.Sprintf("the CA is being replaced, since %s: phase %s, since %s", timeText(res.GetBegan()), res.GetPhase(), timeText(res.GetSince())))
		for _, x := range res.GetWaits() {
			lines = append(lines, strings.TrimSpace("waits for "+strings.TrimSpace(x.GetKind()+" "+x.GetName())+": "+x.GetReason()))
		}
		if more := int(res.GetWaiting()) - len(res.GetWaits()); more > 0 {
			lines = append(lines, fmt.Sprintf("waits for %d more", more))
		}
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}
