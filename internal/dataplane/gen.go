// Package dataplane loads, pins, replaces and fills the BPF programs. It is the only importer of cilium/ebpf.
package dataplane

// The types of bpf/abi.h come back from BTF; nothing is typed twice. `make generate` runs these lines, the objects are
// not committed, the Go files are.

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Wpadded -Werror -I../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel -type limit -type mux_reason -type endpoint_slot -type endpoint_slot_value -type endpoint -type endpoint_flag -type member_bit -type backend -type nexthop_bit -type device -type mux_config -type counter mux ../../bpf/mux.bpf.c

// A program that only tests load; it shows bpf/lib to them.

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -output-suffix _test -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Wpadded -Werror -I../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel unit ../../bpf/unit/mux_lib.bpf.c
