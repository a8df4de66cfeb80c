package lb

import (
	"fmt"
	"net/netip"
	"regexp"
)

// Validate returns the faults of each object alone, and objects that are given twice; nil if there
// are none. Defaults must be filled in.
func Validate(objects ...Object) []Violation {
	var all []Violation
	seen := map[string]bool{}
	for _, o := range objects {
		ref := Ref(o.Kind(), o.ObjectName())
		if seen[ref] {
			all = append(all, Violation{Field: ref, Allowed: allowedOnce})
		}
		seen[ref] = true
		f := validate(o)
		all = append(all, f.prefixed(ref)...)
	}
	return all
}

const allowedOnce = "must not be given twice"

// validate returns the faults of one object, with paths within it.
func validate(o Object) *faults {
	f := &faults{}
	f.check("name", o.ObjectName(), label(o.ObjectName()))
	switch o := o.(type) {
	case *Service:
		f.service(o)
	case *Node:
		f.node(o)
	case *Network:
		f.network(o)
	case *Tenant:
		f.tenant(o)
	case *Policy:
		f.policy(o)
	default:
		panic(fmt.Sprintf("validate: object of type %T", o))
	}
	return f
}

// labelForm is the form of names: DNS labels (RFC 1123 section 2.1).
var labelForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func label(s string) string {
	const allowed = "must be a DNS label: 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"
	switch {
	case s == "":
		return "is missing, " + allowed
	case !labelForm.MatchString(s):
		return allowed
	}
	return ""
}

// unicast returns the fault of an address that a machine should have; empty if there is none.
func unicast(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return "is missing, must be an IPv4 or IPv6 address"
	case plainAddr(a) != "":
		return plainAddr(a)
	case a.IsUnspecified():
		return "must not be the unspecified address"
	case a.IsLoopback():
		return "must not be a loopback address"
	case a.IsMulticast():
		return "must not be a multicast address"
	case a.IsLinkLocalUnicast():
		return "must not be a link-local address"
	case a.Is4() && a.As4()[0] == 0, a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "must be a unicast address"
	}
	return ""
}

// unicastPrefix returns the fault of a prefix of addresses that machines should have.
func unicastPrefix(p netip.Prefix) string {
	switch {
	case !p.IsValid():
		return allowedPrefix
	case plainPrefix(p) != "":
		return plainPrefix(p)
	case p.Bits() == 0:
		return "must not hold every address"
	}
	for _, special := range specialPrefixes {
		if p.Overlaps(special.prefix) {
			return "must not hold " + special.what
		}
	}
	return ""
}

// specialPrefixes contain the addresses that unicast refuses (RFC 6890). Prefixes wider than these
// overlap them as well.
var specialPrefixes = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "the unspecified address"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback addresses"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local addresses"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast addresses"},
	{netip.MustParsePrefix("::/127"), "the unspecified or the loopback address"},
	{netip.MustParsePrefix("::ffff:0:0/96"), "IPv4-mapped addresses"},
	{netip.MustParsePrefix("fe80::/10"), "link-local addresses"},
	{netip.MustParsePrefix("ff00::/8"), "multicast addresses"},
}

// families checks a list of at most one address of each family.
func (f *faults) families(path string, list []netip.Addr) {
	if len(list) == 0 {
		f.add(path, "", "is missing, must be an address, or one of each family")
	}
	for i, a := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		f.check(at, addrText(a), unicast(a))
		for j, b := range list[:i] {
			if a.Is4() == b.Is4() && !f.has(at) && !f.has(fmt.Sprintf("%s[%d]", path, j)) {
				f.add(at, a.String(), "must be at most one address of each family")
			}
		}
	}
}

// unique adds a fault for each duplicate.
func unique[T comparable](f *faults, path string, list []T) {
	seen := map[T]bool{}
	for i, v := range list {
		if at := fmt.Sprintf("%s[%d]", path, i); seen[v] && !f.has(at) {
			f.add(at, fmt.Sprint(v), allowedOnce)
		}
		seen[v] = true
	}
}
