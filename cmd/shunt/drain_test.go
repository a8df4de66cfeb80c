package main

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
)

// Two users drain two backends concurrently. The later one starts over and neither drain is lost.
func TestDrainKeepsTheChangesOfOthers(t *testing.T) {
	fake := startFake(t)
	if code, out := shunt("apply", "-f", "../../docs/examples/web.yaml", "--server", fake.url); code != exitFailed {
		t.Fatalf("a service without its network was taken: %d %s", code, out)
	}
	const network = "kind: Network\nname: dc\nvips: [203.0.113.0/24, \"2001:db8:f::/64\"]\n"
	if code, out := shuntWith(network, "apply", "-f", "-"); code != exitOK {
		t.Fatal(out)
	}
	if code, out := shunt("apply", "-f", "../../docs/examples/web.yaml"); code != exitOK {
		t.Fatal(out)
	}
	fake.meddle = func() {
		other := proto.CloneOf(fake.objects["services/web"])
		ep := other.GetService().Endpoints[0]
		ep.Backends[1].Drain = true
		other.Owners = append(other.Owners, &apiv1.FieldOwner{Source: drainSource, Fields: []string{convert.BackendPath(ep, ep.Backends[1]) + ".drain"}})
		fake.revision++
		other.Revision = fake.revision
		fake.objects["services/web"] = other
	}
	if code, out := shunt("drain", "backend", "web", "10.20.1.11"); code != exitOK {
		t.Fatal(out)
	}
	for i, b := range fake.objects["services/web"].GetService().Endpoints[0].Backends {
		if want := i < 2; b.Drain != want {
			t.Errorf("backend %d: drain %v, want %v", i, b.Drain, want)
		}
	}
}

// shunt runs one command line and returns its exit code and all its output.
func shunt(args ...string) (int, string) { return shuntWith("", args...) }

// shuntWith is shunt with standard input.
func shuntWith(input string, args ...string) (int, string) {
	var out bytes.Buffer
	code := run(args, strings.NewReader(input), &out, &out)
	return code, out.String()
}
