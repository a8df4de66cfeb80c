package main

import (
	"maps"
	"slices"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// objectName returns the name of an object of any kind.
func objectName(o *apiv1.Object) string {
	switch kind := o.GetKind().(type) {
	case *apiv1.Object_Service:
		return kind.Service.GetName()
	case *apiv1.Object_Node:
		return kind.Node.GetName()
	case *apiv1.Object_Network:
		return kind.Network.GetName()
	case *apiv1.Object_Tenant:
		return kind.Tenant.GetName()
	case *apiv1.Object_Policy:
		return kind.Policy.GetName()
	}
	return ""
}

// The stored kinds as the command line spells them: every accepted spelling, "service, node, …",
// and "service, node or …".
var (
	objectKinds, kindPlurals = spellings()
	kindWords                = strings.ToLower(strings.TrimPrefix(strings.Replace(lb.AllowedKind, " or ", ", ", 1), "must be "))
	kindChoice               = strings.ToLower(strings.TrimPrefix(lb.AllowedKind, "must be "))
)

func spellings() (kinds map[string]lb.Kind, plurals []string) {
	kinds = map[string]lb.Kind{}
	for _, kind := range lb.Kinds {
		kinds[strings.ToLower(string(kind))], kinds[kind.Plural()] = kind, kind
		plurals = append(plurals, kind.Plural())
	}
	return kinds, plurals
}

// parseKind reads a kind of stored objects from the command line.
func parseKind(s string) (lb.Kind, error) {
	if kind, ok := objectKinds[strings.ToLower(s)]; ok {
		return kind, nil
	}
	return "", usagef("kind: %q: must be %s%s", s, kindChoice, lb.MeantFor(s, slices.Sorted(maps.Keys(objectKinds))))
}
