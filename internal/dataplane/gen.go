// Package dataplane loads, pins, replaces and fills the BPF programs. It is the only importer of cilium/ebpf.
package dataplane

// The types of bpf/abi.h come back from BTF; nothing is typed twice. `make generate` runs these lines, the objects are
// not committed, the Go files are.

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Wpadded -Werror -I../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel -type limit -type mux_reason -type ring_word_bit -type endpoint_slot -type endpoint_slot_value -type endpoint_extra -type endpoint_flag -type cookie_set -type cookie_live -type track_record -type connection_batch -type connection_shift -type connection_limit -type policy_shift -type flow_bit -type flow_class -type flow_bucket -type member_bit -type quic_head -type quic_kind -type quic_set -type schedule_shift -type schedule_kind -type schedule_cursor_shift -type schedule_limit -type member_load_shift -type backend -type nexthop_bit -type overhead -type device_bit -type device -type mux_config -type counter -type span_shift -type port_range_shift -type snat_block -type snat_shift -type nat_limit -type nat_key -type nat_name -type nat_session -type nat_flag -type nat_life_shift -type nat_expiry -type nat_address -type nat_shift -type source_list -type vip_guard -type encap -type gue -type gue_source -type probe_limit -type probe_kind -type probe_rule -type probe_lines_shift -type probe_round_shift -type probe_state -type probe_result -type probe_result_shift -type probe_text mux ../../bpf/mux.bpf.c

// Programs that only tests load; they show bpf/lib to them.

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -output-suffix _test -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Wpadded -Werror -I../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel unit ../../bpf/unit/mux_lib.bpf.c

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -output-suffix _test -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Wpadded -Werror -I../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel bucket ../../bpf/unit/bucket.bpf.c

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -output-suffix _test -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Wpadded -Werror -I../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel policy ../../bpf/unit/policy.bpf.c

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -output-suffix _test -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Wpadded -Werror -I../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel cookie ../../bpf/unit/cookie.bpf.c

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -output-suffix _test -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Wpadded -Werror -I../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel quic ../../bpf/unit/quic.bpf.c

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -output-suffix _test -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Wpadded -Werror -I../../bpf -I/usr/include/x86_64-linux-gnu" -target bpfel evc ../../bpf/unit/evc.bpf.c
