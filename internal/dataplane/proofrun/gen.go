// Package proofrun loads programs that Shunt is compared with and that none of its parts runs.
package proofrun

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Wpadded -Werror -I../../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel published ../../../bpf/proof/published.bpf.c
