package dataplane

import (
	"bytes"
	"fmt"
	"strings"
	"sync"

	"github.com/cilium/ebpf/btf"
)

// Class is the end of a packet that a reason counts. Its values are those of enum reason_class in bpf/abi/reason_class.h.
type Class string

// Classes.
const (
	// ClassDrop: discarded.
	ClassDrop Class = "drop"
	// ClassPass: left to the kernel's network stack.
	ClassPass Class = "pass"
	// ClassTX: forwarded, delivered, or answered by the program.
	ClassTX Class = "tx"
	// ClassConsumed: kept by the program or given to its agent.
	ClassConsumed Class = "consumed"
	// ClassInfo: counted in addition to the reason that ended the packet, or without a packet.
	ClassInfo Class = "info"
)

// classes are the classes by number.
var classes = []Class{ClassDrop, ClassPass, ClassTX, ClassConsumed, ClassInfo}

// Reason is a counter of the programs: its name in lower case, and its class.
type Reason struct {
	Name  string
	Class Class
}

// Reasons are those of one program.
type Reasons struct {
	// All has them by number. It is never modified.
	All   []Reason
	class map[string]Class
}

// MuxReasons returns the reasons of the mux program, read from the BTF of its object.
var MuxReasons = sync.OnceValue(func() Reasons { return mustReasons(_MuxBytes, "mux_reason", "MUX_REASON_") })

// HostReasons returns the reasons of the host programs, read from the BTF of their object.
var HostReasons = sync.OnceValue(func() Reasons { return mustReasons(_HostBytes, "host_reason", "HOST_REASON_") })

// COReasons returns the reasons of the program that makes handshakes, read from the BTF of its object.
var COReasons = sync.OnceValue(func() Reasons { return mustReasons(_HostCOBytes, "co_reason", "CO_REASON_") })

// Class returns the class of a reason by its name; "" when there is no such reason.
func (r Reasons) Class(name string) Class { return r.class[name] }

// agentReasons are reasons of hosts that the agent counts itself.
var agentReasons = map[string]Class{"flow_abandoned": ClassInfo, "flow_expired": ClassInfo, "out_snat_expired": ClassDrop}

// COPrefix begins the names of COReasons in a host's status.
const COPrefix = "co_"

// ClassOf returns the class of a reason in the status of a node of role "mux" or "host"; "" for an unknown one.
func ClassOf(role, reason string) Class {
	if role == "mux" {
		return MuxReasons().Class(reason)
	}
	if name, ok := strings.CutPrefix(reason, COPrefix); ok {
		return COReasons().Class(name)
	}
	if c, ok := agentReasons[reason]; ok {
		return c
	}
	return HostReasons().Class(reason)
}

// mustReasons panics if the object, which is part of the program, lacks the enumerations.
func mustReasons(object []byte, enum, prefix string) Reasons {
	spec, err := btf.LoadSpecFromReader(bytes.NewReader(object))
	if err != nil {
		panic(fmt.Sprintf("read BTF of %s: %v", enum, err))
	}
	all, err := reasonsOf(spec, enum, prefix)
	if err != nil {
		panic(err)
	}
	r := Reasons{all, make(map[string]Class, len(all))}
	for _, one := range all {
		r.class[one.Name] = one.Class
	}
	return r
}

// reasonsOf lists the values of an enumeration of reasons from 0 up, without prefix and …_MAX, in lower case. Their classes are the values of
// the enumeration with the suffix _class.
func reasonsOf(spec *btf.Spec, enum, prefix string) ([]Reason, error) {
	var names, of *btf.Enum
	if err := spec.TypeByName(enum, &names); err != nil {
		return nil, fmt.Errorf("find enum %s in BTF: %w", enum, err)
	}
	if err := spec.TypeByName(enum+"_class", &of); err != nil {
		return nil, fmt.Errorf("find enum %s_class in BTF: %w", enum, err)
	}
	class := map[string]Class{}
	for _, v := range of.Values {
		if v.Value >= uint64(len(classes)) {
			return nil, fmt.Errorf("enum %s_class: %s: %d: must be below %d", enum, v.Name, v.Value, len(classes))
		}
		class[strings.TrimPrefix(v.Name, "CLASS_OF_")] = classes[v.Value]
	}
	all := make([]Reason, len(names.Values)-1)
	for _, v := range names.Values {
		if v.Value < uint64(len(all)) {
			all[v.Value] = Reason{strings.ToLower(strings.TrimPrefix(v.Name, prefix)), class[v.Name]}
		}
	}
	for i, r := range all {
		if r.Name == "" || r.Class == "" {
			return nil, fmt.Errorf("enum %s: number %d: %q has the class %q", enum, i, r.Name, r.Class)
		}
	}
	return all, nil
}
