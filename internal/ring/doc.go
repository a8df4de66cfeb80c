// Package ring builds Maglev rings (Eisenbud et al., NSDI 2016, section 3.4), hashes flows and
// walks rings. It is pure: the same members give the same ring on every node, in any order and with
// any history.
package ring

// Limits of bpf/abi.h; a test in internal/dataplane compares them.
const (
	// CodeMin and CodeMax bound the size code: a ring has 1<<code slots.
	CodeMin = 6
	CodeMax = 20
	// FallbackProbes is the number of slots tried after a dead member before the members are
	// scanned.
	FallbackProbes = 8
)
