package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// VerifierLog returns the whole log of the kernel's verifier if err is its refusal of a program, of which the text of err has the last
// line only; "" otherwise.
func VerifierLog(err error) string {
	if refusal := (*ebpf.VerifierError)(nil); errors.As(err, &refusal) {
		return fmt.Sprintf("%+v\n", refusal)
	}
	return ""
}
