package lb

import "strings"

// faults collects the violations of one object; Field is the path within it until prefixed is
// called.
type faults struct{ found []Violation }

// maxFaults limits the faults of one object, because longer lists are of no use and every check
// scans the list.
const maxFaults = 100

// add adds a fault.
func (f *faults) add(path, value, allowed string) {
	switch {
	case len(f.found) >= maxFaults:
		return
	case len(f.found) == maxFaults-1:
		allowed += " (further faults are not shown)"
	}
	f.found = append(f.found, Violation{Field: path, Value: clip(value), Allowed: allowed})
}

// check adds a fault unless allowed is empty.
func (f *faults) check(path, value, allowed string) {
	if allowed != "" {
		f.add(path, value, allowed)
	}
}

// has reports whether path already has a fault.
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

// plurals holds the kinds as written in paths and on command lines.
var plurals = map[Kind]string{
	KindService: "services", KindNode: "nodes", KindNetwork: "networks", KindTenant: "tenants", KindPolicy: "policies",
}

// Plural returns the kind as written in paths and on command lines: "services".
func (k Kind) Plural() string {
	if p, ok := plurals[k]; ok {
		return p
	}
	return strings.ToLower(string(k)) + "s"
}

// Ref returns the name of an object in messages: "services/web".
func Ref(k Kind, name string) string {
	if name == "" {
		return k.Plural()
	}
	return k.Plural() + "/" + clip(name)
}
