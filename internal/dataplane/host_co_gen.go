package dataplane

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -go-package dataplane -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Wpadded -Werror -I../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel hostCO ../../bpf/hostco.bpf.c
