package lb

import "strings"

// faults collects violations of one object; Field is the path within it until prefix is called.
type faults struct{ found []Violation }

// maxFaults of one object are noted: nobody reads more, and looking for one takes time with each.
const maxFaults = 100

// add notes a fault.
func (f *faults) add(path, value, allowed string) {
	switch {
	case len(f.found) >= maxFaults:
		return
	case len(f.found) == maxFaults-1:
		allowed += " (further faults are not shown)"
	}
	f.found = append(f.found, Violation{Field: path, Value: clip(value), Allowed: allowed})
}

// check notes a fault unless allowed is empty.
func (f *faults) check(path, value, allowed string) {
	if allowed != "" {
		f.add(path, value, allowed)
	}
}

// has tells whether path has a fault already.
func (f *faults) has(path string) bool {
	for _, v := range f.found {
		if v.Field == path {
			return true
		}
	}
	return false
}

// prefixed returns the faults with the object before the path.
func (f *faults) prefixed(object string) []Violation {
	for i := range f.found {
		f.found[i].Field = object + ": " + f.found[i].Field
	}
	return f.found
}

// plurals are the kinds as they are written in paths and on command lines.
var plurals = map[Kind]string{
	KindService: "services", KindNode: "nodes", KindNetwork: "networks", KindTenant: "tenants", KindPolicy: "policies",
}

// Plural returns the kind as it is written in paths and on command lines: "services".
func (k Kind) Plural() string {
	if p, ok := plurals[k]; ok {
		return p
	}
	return strings.ToLower(string(k)) + "s"
}

// Ref returns how messages name an object: "services/web".
func Ref(k Kind, name string) string {
	if name == "" {
		return k.Plural()
	}
	return k.Plural() + "/" + clip(name)
}
