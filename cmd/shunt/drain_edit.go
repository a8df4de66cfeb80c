package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/fields"
	"github.com/shuntlb/shunt/internal/lb"
)

// drainSource owns the fields that drain sets.
const drainSource = "drain"

// drainEdit is one drain or undrain of a node or of a service's backend.
type drainEdit struct {
	on, force bool
	key       lb.BackendKey
	// members lists the backend's members. It is set after the service was read.
	members []lb.BackendKey
}

func (e *drainEdit) register(cmd *cobra.Command) {
	if !e.on {
		cmd.Flags().BoolVar(&e.force, "force", false, "end a drain that others say too, a file for instance: until they say it again")
	}
}

// drainAttempts bounds how often drain starts over because others changed the object meanwhile.
const drainAttempts = 16

// drain changes the fields of an object that the source drain owns. If the object changed since it
// was read, drain starts over. It returns the revision of the change.
func (g *globals) drain(cmd *cobra.Command, kind lb.Kind, name string, e *drainEdit) (revision int64, err error) {
	err = g.call(cmd.Context(), func(ctx context.Context, c *client) error {
		for attempt := 1; ; attempt++ {
			response, err := c.drainOnce(ctx, kind, name, e)
			if connect.CodeOf(err) == connect.CodeAborted && attempt < drainAttempts {
				continue
			}
			if err != nil {
				return err
			}
			revision = response.GetRevision()
			return g.printChanges(cmd.OutOrStdout(), revision, response.GetChanges(), false)
		}
	})
	return revision, err
}

func (c *client) drainOnce(ctx context.Context, kind lb.Kind, name string, e *drainEdit) (*apiv1.ApplyResponse, error) {
	objects, err := c.fetch(ctx, kind, name)
	if err != nil {
		return nil, err
	}
	o := objects[0]
	paths, err := e.paths(o)
	if err != nil {
		return nil, err
	}
	var taken *apiv1.ApplyResponse
	if !e.on {
		for _, other := range othersOf(o, paths) {
			if !e.force {
				return nil, fmt.Errorf("%s: %s: true: %s says so: change it there, or use --force", lb.Ref(kind, name), paths[0], other)
			}
			if taken, err = c.says(ctx, o, other, paths, false); err != nil {
				return nil, err
			}
			o = taken.GetChanges()[0].GetAfter()
		}
	}
	response, err := c.says(ctx, o, drainSource, paths, e.on)
	if err == nil && taken != nil && response.GetChanges()[0].GetAction() == apiv1.Change_ACTION_UNCHANGED {
		return taken, nil
	}
	return response, err
}

// says applies all fields of an object that a source owns, with the fields of paths set or removed.
func (c *client) says(ctx context.Context, o *apiv1.Object, source string, paths []string, on bool) (*apiv1.ApplyResponse, error) {
	set := ownedBy(o, source)
	for _, path := range paths {
		if delete(set, path); on {
			set[path] = struct{}{}
		}
	}
	content := proto.Clone(convert.Content(o))
	if on {
		setDrains(content, set)
	}
	said := convert.WithContent(convert.Schema.Select(content, set))
	said.Revision = o.GetRevision()
	response, err := c.Apply(ctx, connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{said}, Source: source}))
	if err != nil {
		return nil, err
	}
	return response.Msg, nil
}

// setDrains sets every drain that the set names.
func setDrains(content proto.Message, set fields.Set) {
	switch o := content.(type) {
	case *apiv1.Node:
		o.Drain = true
	case *apiv1.Service:
		for _, ep := range o.GetEndpoints() {
			for _, b := range ep.GetBackends() {
				if _, ok := set[convert.BackendPath(ep, b)+".drain"]; ok {
					b.Drain = true
				}
			}
		}
	}
}

// paths returns the fields that the drain changes.
func (e *drainEdit) paths(o *apiv1.Object) ([]string, error) {
	if o.GetNode() != nil {
		return []string{"drain"}, nil
	}
	object, err := domainObject(o)
	if err != nil {
		return nil, err
	}
	s := object.(*lb.Service)
	e.members = drainedBackends(s, e.key)
	var out []string
	for i, ep := range o.GetService().GetEndpoints() {
		for j, b := range ep.GetBackends() {
			if isBackend(&s.Endpoints[i].Backends[j], e.key) {
				out = append(out, convert.BackendPath(ep, b)+".drain")
			}
		}
	}
	if len(out) == 0 {
		what := e.key.DIP.String()
		if e.key.Port != 0 {
			what = netip.AddrPortFrom(e.key.DIP, e.key.Port).String()
		}
		return nil, fmt.Errorf("%s: backend %s: must be a backend of the service", lb.Ref(lb.KindService, s.Name), what)
	}
	return out, nil
}

// isBackend reports whether the key names the backend. Port 0 means every port.
func isBackend(b *lb.Backend, key lb.BackendKey) bool {
	return slices.Contains(b.DIPs, key.DIP) && (key.Port == 0 || key.Port == b.Port)
}

// ownedBy returns the fields of an object that a source owns.
func ownedBy(o *apiv1.Object, source string) fields.Set {
	set := fields.Set{}
	for _, own := range o.GetOwners() {
		if own.GetSource() == source {
			for _, path := range own.GetFields() {
				set[path] = struct{}{}
			}
		}
	}
	return set
}

// othersOf returns the sources other than drain that own any of the fields, ordered.
func othersOf(o *apiv1.Object, paths []string) []string {
	var out []string
	for _, own := range o.GetOwners() {
		if own.GetSource() != drainSource && slices.ContainsFunc(own.GetFields(), func(f string) bool { return slices.Contains(paths, f) }) {
			out = append(out, own.GetSource())
		}
	}
	slices.SortFunc(out, strings.Compare)
	return out
}
