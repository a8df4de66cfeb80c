#!/usr/bin/env bash
# Runs the tests of every package that starts goroutines with the race detector (root; needs gcc).
# PACKAGES selects packages.
set -euo pipefail
cd "$(dirname "$0")/.."
# Leave out the lab and the benchmarks, because they run complete systems, which other tests run
# without the detector.
mapfile -t found < <(grep -rlE '^\s*go (func|[A-Za-z.]+\()|\.Go\(' --include='*.go' --exclude='*_test.go' cmd internal pkg |
	xargs -n1 dirname | sort -u | cat - <(echo pkg/quiclb) | grep -v -e '^internal/bench' -e '^internal/lab$' -e '^internal/dataplane/benchrun$')
# shellcheck disable=SC2086 # several packages
CGO_ENABLED=1 go test -race -count=1 -timeout 60m ${PACKAGES:-$(printf './%s ' "${found[@]}")}
