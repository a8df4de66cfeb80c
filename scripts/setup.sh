#!/usr/bin/env bash
# Installs the packages for building, testing and the lab on Debian 12/13 and Ubuntu 24.04. With the
# argument `bench` it also installs the programs that the benchmarks compare with Shunt. Idempotent:
# it returns immediately if nothing is missing. SHUNT_SETUP=skip skips all changes.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "${SHUNT_SETUP:-}" = skip ] && exit 0

go_version=$(sed -n 's/^toolchain go//p' go.mod)
[ -n "$go_version" ] || go_version=$(sed -n 's/^go //p' go.mod)
need=(clang-19 llvm-19 gcc libc6-dev libbpf-dev linux-libc-dev make git ca-certificates iproute2 ethtool procps curl tcpdump iputils-ping nftables frr bird2 wrk prometheus nginx python3-venv systemd)
if [ "${1:-}" = bench ]; then need+=(haproxy); fi

missing=()
for p in "${need[@]}"; do
	dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done

# have_go returns 0 if the given go command is new enough.
have_go() {
	local v
	v=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
	[ "$(printf '%s\n%s\n' "$go_version" "${v#go}" | sort -V | head -n1)" = "$go_version" ]
}
go_ok=no
for g in .tools/go/bin/go go; do
	if command -v "$g" >/dev/null 2>&1 && have_go "$g"; then go_ok=yes; break; fi
done
if [ $go_ok = no ] && ! command -v go >/dev/null 2>&1; then missing+=(golang-go); fi

if [ ${#missing[@]} -gt 0 ]; then
	[ "$(id -u)" = 0 ] || { echo "setup: not root and missing: ${missing[*]}; run: sudo make setup" >&2; exit 1; }
	echo "setup: installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q >/dev/null
	# The services of the packages must not start on the machine, because the lab starts its own
	# routing daemons in namespaces.
	policy=/usr/sbin/policy-rc.d
	made=no
	if [ ! -e $policy ]; then printf '#!/bin/sh\nexit 101\n' >$policy; chmod +x $policy; made=yes; fi
	trap '[ $made = no ] || rm -f $policy' EXIT
	apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
fi

# A system Go of any version fetches the toolchain that go.mod requires as an ordinary, checksummed
# module.
if [ $go_ok = no ]; then
	echo "setup: fetching Go $go_version"
	arch=$(dpkg --print-architecture)
	tmp=$(mktemp -d)
	(cd "$tmp" && printf 'module setup\n' >go.mod && GOTOOLCHAIN=local GOFLAGS=-mod=mod GOMODCACHE="$tmp/mod" \
		go mod download "golang.org/toolchain@v0.0.1-go$go_version.linux-$arch")
	rm -rf .tools/go && mkdir -p .tools
	cp -r "$tmp/mod/golang.org/toolchain@v0.0.1-go$go_version.linux-$arch" .tools/go
	chmod -R u+w .tools/go "$tmp" && chmod +x .tools/go/bin/* && find .tools/go/pkg/tool -type f -exec chmod +x {} +
	rm -rf "$tmp"
fi

# The third-party QUIC client of the lab's tests: a separate Python environment with pinned
# versions.
if ! cmp -s test/aioquic/requirements.txt .tools/aioquic/requirements.txt; then
	echo "setup: installing aioquic"
	rm -rf .tools/aioquic && mkdir -p .tools
	/usr/bin/python3 -m venv .tools/aioquic
	.tools/aioquic/bin/python -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: -r test/aioquic/requirements.txt
	cp test/aioquic/requirements.txt .tools/aioquic/
fi
