package benchrun

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I../../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel front ../../../bpf/bench/front.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I../../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel floor ../../../bpf/bench/floor.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I../../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel responder ../../../bpf/bench/responder.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I../../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel hostfront ../../../bpf/bench/host.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I../../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel tunnel ../../../bpf/bench/tunnel.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I../../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel -type choices schedule ../../../bpf/bench/schedule.bpf.c
