#!/usr/bin/env bash
# Prints the instructions of every BPF function by object, largest first, and how many instructions
# the verifier processed for each program (root).
set -euo pipefail
cd "$(dirname "$0")/.."
llvm=${LLVM_VERSION:-19}
for object in internal/dataplane/*_bpfel.o; do
	name=$(basename "$object" _bpfel.o)
	# A BPF instruction has eight bytes. A 64-bit load takes two instructions.
	"llvm-nm-$llvm" --print-size --size-sort --reverse-sort "$object" | awk -v name="$name" '
		NF == 4 && tolower($3) == "t" { printf "%-10s %8d instructions  %s\n", name, hex($2) / 8, $4 }
		function hex(s,   i, n) { for (i = 1; i <= length(s); i++) n = n * 16 + index("0123456789abcdef", tolower(substr(s, i, 1))) - 1; return n }'
done
go test -count=1 -v -run '^(TestVerifiedInstructions|TestHostSteps)$' ./internal/dataplane |
	sed -n 's/^ *[a-z_]*_test\.go:[0-9]*: //p'
