#!/usr/bin/env bash
# Prints the path of a go.mod, which it makes in DIR, with which this module builds with quic-go 0.65: servers of earlier ones bear two migrations of a
# connection. Caddy 2.11.9 needs a line less for it: what names a tracer that quic-go has no more is left out of a copy of Caddy.
#
#   go build -modfile "$(./modfile.sh DIR)" -o caddy ./cmd/caddy
set -euo pipefail
dir=$(realpath "${1:?usage: modfile.sh DIR}")
cd "$(dirname "$0")"
caddy=$(go mod download -json github.com/caddyserver/caddy/v2@v2.11.9 | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
rm -rf "$dir/caddy"
cp -r "$caddy" "$dir/caddy"
chmod -R u+w "$dir/caddy"
sed -i '/h3qlog/d' "$dir/caddy/listeners.go"
cp go.mod go.sum "$dir/"
go mod edit -dropreplace github.com/quic-go/quic-go -replace "github.com/caddyserver/caddy/v2=$dir/caddy" -replace "github.com/shuntlb/shunt=$(realpath ../../../..)" "$dir/go.mod"
go mod tidy -modfile "$dir/go.mod"
echo "$dir/go.mod"
