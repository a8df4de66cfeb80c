#!/usr/bin/env bash
# Runs every test, from unit to lab, as `make test` and CI do. A skipped test is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "test: packet and lab tests load BPF programs and make namespaces: run as root" >&2; exit 1; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# run NAME PACKAGES...: runs go test and keeps every event, so that skips are counted. Suites whose
# tests need all CPUs of the machine run one package at a time (-p 1).
run() {
	local name=$1
	shift
	echo "== $name"
	if ! go test -count=1 "$@" -json >"$out/$name.json"; then
		go run ./test/report <"$out/$name.json" || true
		echo "== $name: FAILED" >&2
		failed=1
		return
	fi
	go run ./test/report <"$out/$name.json" || failed=1
}
failed=0
mapfile -t fast < <(go list ./... | grep -v -e /test/lab -e /test/chaos)
run unit -timeout 30m "${fast[@]}"
run lab -timeout 40m -p 1 ./test/lab/...
run chaos -timeout 15m -p 1 ./test/chaos/...
if [ $failed != 0 ]; then echo "FAILED"; exit 1; fi
cat "$out"/*.json | go run ./test/report -totals
