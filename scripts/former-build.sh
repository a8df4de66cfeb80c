#!/usr/bin/env bash
# Builds shunt at an earlier commit, with the BPF objects of that commit, into a file. Usage:
# former-build.sh COMMIT FILE
set -euo pipefail
commit=$(git rev-parse --verify "$1^{commit}")
file=$(realpath -m "$2")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
git archive "$commit" | tar -x -C "$dir"
cd "$dir"
go generate ./internal/dataplane/...
go build -trimpath -ldflags "-X main.version=former -X main.builtFrom=$commit" -o "$file" ./cmd/shunt
