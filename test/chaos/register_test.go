package chaos

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/anishathalye/porcupine"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
)

// A register is a service that may be present or absent. Its packet limit is its value, which no
// two writes share, so that a revision of the object identifies a value. It has one backend, which
// follows from the value, so that nodes show which value they have applied.

// registerService returns the object.
func registerService(key int, value uint64, revision int64) *apiv1.Object {
	host := 1 + int(value%uint64(cluster.Topology.Hosts.Count))
	return &apiv1.Object{Revision: revision, Kind: &apiv1.Object_Service{Service: &apiv1.Service{
		Name: registerName(key), Vip: texts(registerVIPsOf(key)), Limits: &apiv1.Limits{Packets: value},
		// Without a window a host drops a backend as soon as the store does.
		Endpoints: []*apiv1.Endpoint{{Protocol: "tcp", Port: "80", RepairWindow: durationpb.New(0), Backends: []*apiv1.Backend{
			{Dip: texts(both(lab.VMAddresses(host, 1))), Port: lab.ServerPort, Host: lab.HostAddresses(host).V4.Addr().String()},
		}}},
	}}}
}

// registerVIPs is the number before that of the first register's VIP.
const registerVIPs = 50

// registerVIPsOf returns the VIPs of a register.
func registerVIPsOf(key int) [families]netip.Addr {
	v4, v6 := lab.VIPAddresses(registerVIPs + key)
	return [families]netip.Addr{v4, v6}
}

// texts returns addresses as an object has them.
func texts(addresses [families]netip.Addr) []string {
	return []string{addresses[0].String(), addresses[1].String()}
}

func registerName(key int) string { return fmt.Sprintf("register%d", key) }

// action is the kind of a call on a register.
type action string

// The actions.
const (
	get action = "get"
	// apply writes a value unconditionally.
	apply action = "apply"
	// applyIf writes a value if the current revision is that of an earlier value.
	applyIf action = "apply if"
	remove  action = "delete"
)

// operation is a call.
type operation struct {
	key    int
	action action
	value  uint64 // written
	former uint64 // value whose revision must be current
}

// outcome is its result.
type outcome struct {
	// unknown means that the call may have had its effect or not, at any time after it began.
	unknown bool
	// refused means that the register has another revision, or is absent.
	refused bool
	found   bool   // by a get
	value   uint64 // that it found
}

// content is the state of a register.
type content struct {
	there bool
	value uint64
}

// registers is the sequential specification.
var registers = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := map[int][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(operation).key
			parts[key] = append(parts[key], op)
		}
		var out [][]porcupine.Operation
		for _, part := range parts {
			out = append(out, part)
		}
		return out
	},
	Init: func() any { return content{} },
	Step: func(state, input, output any) (bool, any) {
		return stepRegister(state.(content), input.(operation), output.(outcome))
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v %+v", input, output) },
}

// stepRegister applies a call at one moment. A call of unknown outcome that had no effect is
// ordered after all others.
func stepRegister(now content, op operation, out outcome) (possible bool, then content) {
	written := content{true, op.value}
	switch op.action {
	case get:
		return out.found == now.there && (!out.found || out.value == now.value), now
	case apply:
		return !out.refused, written
	case applyIf:
		holds := now.there && now.value == op.former
		if holds && !out.refused {
			return true, written
		}
		return out.unknown || out.refused != holds, now
	default:
		if now.there && !out.refused {
			return true, content{}
		}
		return out.unknown || out.refused != now.there, now
	}
}

// TestRegisterFindsLies checks that the check can fail, for every kind of call.
func TestRegisterFindsLies(t *testing.T) {
	const pending = int64(1) << 62
	at := func(call, ret int64, op operation, out outcome) porcupine.Operation {
		return porcupine.Operation{Input: op, Output: out, Call: call, Return: ret}
	}
	put := func(call, ret int64, value uint64) porcupine.Operation {
		return at(call, ret, operation{action: apply, value: value}, outcome{})
	}
	read := func(call, ret int64, value uint64) porcupine.Operation {
		return at(call, ret, operation{action: get}, outcome{found: value != 0, value: value})
	}
	swap := func(call, ret int64, former, value uint64, out outcome) porcupine.Operation {
		return at(call, ret, operation{action: applyIf, former: former, value: value}, out)
	}
	drop := func(call, ret int64, out outcome) porcupine.Operation {
		return at(call, ret, operation{action: remove}, out)
	}
	refused, unknown := outcome{refused: true}, outcome{unknown: true}
	for name, c := range map[string]struct {
		ops  []porcupine.Operation
		want bool
	}{
		"in order":                        {[]porcupine.Operation{put(0, 1, 1), read(2, 3, 1), drop(4, 5, outcome{}), read(6, 7, 0)}, true},
		"at the same time":                {[]porcupine.Operation{put(0, 5, 1), read(1, 2, 0), read(3, 4, 1)}, true},
		"a lost write":                    {[]porcupine.Operation{put(0, 1, 1), read(2, 3, 0)}, false},
		"a stale read":                    {[]porcupine.Operation{put(0, 1, 1), put(2, 3, 2), read(4, 5, 2), read(6, 7, 1)}, false},
		"a value of nobody":               {[]porcupine.Operation{put(0, 1, 1), read(2, 3, 7)}, false},
		"an unknown write was done":       {[]porcupine.Operation{at(0, pending, operation{action: apply, value: 1}, unknown), read(2, 3, 0), read(4, 5, 1)}, true},
		"an unknown write was not done":   {[]porcupine.Operation{put(0, 1, 1), at(2, pending, operation{action: apply, value: 2}, unknown), read(4, 5, 1)}, true},
		"an unknown write was undone":     {[]porcupine.Operation{put(0, 1, 1), at(2, pending, operation{action: apply, value: 2}, unknown), read(4, 5, 2), read(6, 7, 1)}, false},
		"an expected revision":            {[]porcupine.Operation{put(0, 1, 1), swap(2, 3, 1, 2, outcome{}), read(4, 5, 2)}, true},
		"another revision":                {[]porcupine.Operation{put(0, 1, 1), put(2, 3, 2), swap(4, 5, 1, 3, outcome{})}, false},
		"an expected revision is refused": {[]porcupine.Operation{put(0, 1, 1), swap(2, 3, 1, 2, refused)}, false},
		"another revision is refused":     {[]porcupine.Operation{put(0, 1, 1), put(2, 3, 2), swap(4, 5, 1, 3, refused)}, true},
		"what was refused is there":       {[]porcupine.Operation{put(0, 1, 1), put(2, 3, 2), swap(4, 5, 1, 3, refused), read(6, 7, 3)}, false},
		"two had the same revision":       {[]porcupine.Operation{put(0, 1, 1), swap(2, 5, 1, 2, outcome{}), swap(3, 4, 1, 3, outcome{})}, false},
		"an unknown one had it":           {[]porcupine.Operation{put(0, 1, 1), swap(2, pending, 1, 2, unknown), swap(3, 4, 1, 3, refused), read(5, 6, 2)}, true},
		"a delete of nothing":             {[]porcupine.Operation{drop(0, 1, outcome{})}, false},
		"nothing to delete":               {[]porcupine.Operation{put(0, 1, 1), drop(2, 3, refused)}, false},
		"a deleted one is back":           {[]porcupine.Operation{put(0, 1, 1), drop(2, 3, outcome{}), read(4, 5, 1)}, false},
		"an unknown delete":               {[]porcupine.Operation{put(0, 1, 1), drop(2, pending, unknown), read(4, 5, 1), read(6, 7, 0)}, true},
	} {
		if got := porcupine.CheckOperations(registers, c.ops); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
