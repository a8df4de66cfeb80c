package lab_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
)

// members returns the leader and the managers that respond to it.
func (l caLab) members(ctx context.Context) (leader string, healthy []string, err error) {
	client, err := l.Client()
	if err != nil {
		return "", nil, err
	}
	res, err := client.Members(ctx, connect.NewRequest(&apiv1.MembersRequest{}))
	if err != nil {
		return "", nil, err
	}
	for _, m := range res.Msg.GetMembers() {
		if m.GetHealthy() {
			healthy = append(healthy, m.GetName())
		}
		if m.GetLeader() {
			leader = m.GetName()
		}
	}
	return leader, healthy, nil
}

// TestFiveManagers checks that five managers accept changes while any two are down, the leader
// included. Without a majority they refuse changes, and traffic continues. The return of one
// restores the majority.
func TestFiveManagers(t *testing.T) {
	topology := lab.DefaultTopology()
	topology.Name, topology.Managers, topology.Muxes, topology.Hosts.Count, topology.Routers.Daemon = fmt.Sprintf("five%d", os.Getpid()), 5, 1, 1, daemon()
	t.Cleanup(func() {
		if err := lab.Down(context.Background(), topology.Name); err != nil {
			t.Error(err)
		}
	})
	up, err := lab.Up(t.Context(), topology, lab.Options{Binary: program})
	if err != nil {
		t.Fatal(err)
	}
	l := caLab{up, t}
	logsOnFailure(t, up)
	number := 10
	serve := func(what string) (target string) {
		t.Helper()
		s := service{name: fmt.Sprintf("s%d", number), number: number, protocol: "tcp", port: 7, dipPort: 7, backends: []string{"host1-vm1"}}
		number++
		await(t, "a change "+what, func(ctx context.Context) error {
			_, err := l.Apply(ctx, s.yaml(t))
			return err
		})
		await(t, "an echo "+what, func(ctx context.Context) error { return l.echo(ctx, s.targets()[0]) })
		return s.targets()[0]
	}
	whole := func() (leader string, others []string) {
		t.Helper()
		await(t, "five healthy managers with a leader", func(ctx context.Context) error {
			first, healthy, err := l.members(ctx)
			if err != nil || first == "" || len(healthy) != 5 {
				return errors.Join(err, fmt.Errorf("%s leads %v", first, healthy))
			}
			leader = first
			others = slices.DeleteFunc(healthy, func(name string) bool { return name == first })
			return nil
		})
		return leader, others
	}
	target := serve("with five managers")
	leader, others := whole()
	down := []string{leader, others[0]}
	for _, name := range down {
		if err := l.KillManager(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	serve(fmt.Sprintf("without %v", down))
	third := slices.DeleteFunc(others, func(name string) bool { return slices.Contains(down, name) })[0]
	if err := l.KillManager(t.Context(), third); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	s := service{name: "minority", number: 9, protocol: "tcp", port: 7, dipPort: 7, backends: []string{"host1-vm1"}}
	if _, err := l.Apply(ctx, s.yaml(t)); err == nil {
		t.Errorf("two of five managers accepted a change")
	}
	cancel()
	if err := l.echo(t.Context(), target); err != nil {
		t.Errorf("an echo while there is no majority: %v", err)
	}
	if err := l.StartManager(third); err != nil {
		t.Fatal(err)
	}
	serve("with three of five managers again")
	for _, name := range down {
		if err := l.StartManager(name); err != nil {
			t.Fatal(err)
		}
	}
	whole()
}
