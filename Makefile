# Build and test targets. `make test` and `make demo` install everything that they need.
SHELL := /bin/bash
.DEFAULT_GOAL := build
.PHONY: setup generate build test lint bpf-stat race lab demo bench bench-compare way-back chaos clean check-generated

# The Go that scripts/setup.sh installs comes first. It is installed only if the system's Go is
# missing or too old.
export PATH := $(CURDIR)/.tools/go/bin:$(PATH)
export CGO_ENABLED := 0
export GOTOOLCHAIN := local

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.builtFrom=$(COMMIT)

## setup: install the packages for building, testing and the lab (Debian 12/13, Ubuntu 24.04; root)
setup:
	@scripts/setup.sh

## generate: BPF objects with their Go bindings, API code
generate: setup
	go generate ./internal/dataplane/...
	go tool -modfile=tools/go.mod buf generate

## build: bin/shunt, static
build: setup
	go generate ./internal/dataplane/...
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/shunt ./cmd/shunt

## test: everything, from unit to lab
test: build
	scripts/test.sh

## lint: formatting, vet, API lint
lint: setup
	@test -z "$$(gofmt -l api bpf cmd internal pkg test)" || { gofmt -l api bpf cmd internal pkg test; exit 1; }
	go vet ./...
	go tool -modfile=tools/go.mod buf lint

## check-generated: generated code matches its sources
check-generated: generate
	@git diff --exit-code --stat -- '*.pb.go' '*.connect.go' '*_bpfel.go' '*_bpfel_test.go' || { echo 'generated code differs: run make generate and commit' >&2; exit 1; }

## race: tests of packages that start goroutines, with the race detector (root); PACKAGES selects
## some
race: build
	@scripts/race.sh

## bpf-stat: instructions of each BPF function, and verified instructions of each program (root)
bpf-stat: build
	@scripts/bpf-stat.sh

## lab: the default topology, up
lab: build
	bin/shunt lab up

## demo: a guided run with live numbers and a verdict
demo: build
	bin/shunt lab demo $(DEMO_FLAGS)

## bench: all suites; writes docs/benchmarks.md and its plots; installs HAProxy, and builds a Rust
## program if cargo is installed
bench: build
	@scripts/setup.sh bench
	bin/shunt bench all --write docs

## bench-compare: figures of commit BASE and of this tree, measured in turns; SUITES=control,rings
## selects some
bench-compare: build
	@scripts/setup.sh bench
	scripts/bench-compare.sh '$(BASE)' '$(SUITES)'

## way-back: downgrade muxes, hosts and manager of a lab to the build of commit BASE and upgrade
## them again, under traffic
way-back: build
	scripts/former-build.sh '$(BASE)' bin/shunt.former
	SHUNT_FORMER=$(CURDIR)/bin/shunt.former go test -count=1 -timeout 20m -v -run 'TestWayBack$$' ./test/lab

## chaos: ten minutes of faults in all parts of a lab; see SHUNT_CHAOS_MINUTES, SHUNT_CHAOS_SEED and
## SHUNT_LAB_DAEMON
chaos: build
	SHUNT_CHAOS_MINUTES=$${SHUNT_CHAOS_MINUTES:-10} go test -count=1 -timeout 3h -v ./test/chaos

clean:
	rm -rf bin
	find internal -name '*_bpfel.o' -delete
