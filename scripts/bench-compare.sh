#!/usr/bin/env bash
# bench-compare.sh COMMIT [SUITES]: builds an earlier commit in a separate directory, runs the
# benchmark cases of that build and of the current one in turns, and prints the ratios. Exits with 1
# if a figure is more than 1.10 times that of the earlier commit and docs/bench-reasons.yaml has no
# reason for it. SUITES is a comma-separated list of names, all by default. BENCH_FLAGS are
# additional flags of `shunt bench compare`.
set -euo pipefail
cd "$(dirname "$0")/.."
base=${1:-}
[ -n "$base" ] || { echo "bench-compare: BASE: is missing: the commit to compare with, as in make bench-compare BASE=v1.0" >&2; exit 2; }
commit=$(git rev-parse --verify --quiet "$base^{commit}") || { echo "bench-compare: BASE: $base: is no commit of this repository" >&2; exit 2; }
tree=$(mktemp -d)
cleanup() {
	git worktree remove --force "$tree/base" 2>/dev/null || true
	rm -rf "$tree"
}
trap cleanup EXIT
git worktree add --quiet --detach "$tree/base" "$commit"
echo "bench-compare: building ${commit:0:12}" >&2
make -C "$tree/base" build >"$tree/build.log" 2>&1 || { tail -n 20 "$tree/build.log" >&2; echo "bench-compare: cannot build ${commit:0:12}" >&2; exit 1; }
# shellcheck disable=SC2086 # several flags
bin/shunt bench compare --base "$tree/base/bin/shunt" --suites "${2:-}" ${BENCH_FLAGS:-}
