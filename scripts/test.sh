#!/usr/bin/env bash
# Runs every test, from unit to lab, as `make test` and CI do. A skipped test is a failure: what cannot run must say so.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "test: packet and lab tests load BPF programs and make namespaces: run as root" >&2; exit 1; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# run NAME PACKAGES...: go test with every event kept, so that skips are seen. One package at a time where a test
# needs the machine's CPUs to itself.
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
