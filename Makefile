# Shunt's commands. `make test` and `make demo` do all their own set-up.
SHELL := /bin/bash
.DEFAULT_GOAL := build
.PHONY: setup generate build test lint lab demo bench chaos clean check-generated

# Go that scripts/setup.sh brings is put in front where the system has none that is new enough.
export PATH := $(CURDIR)/.tools/go/bin:$(PATH)
export CGO_ENABLED := 0
export GOTOOLCHAIN := local

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.builtFrom=$(COMMIT)

## setup: install what building, testing and the lab need (Debian 12/13, Ubuntu 24.04; root)
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

## check-generated: generated code is what the sources say
check-generated: generate
	@git diff --exit-code --stat -- '*.pb.go' '*.connect.go' '*_bpfel.go' '*_bpfel_test.go' || { echo 'generated code differs: run make generate and commit' >&2; exit 1; }

## lab: the default topology, up
lab: build
	bin/shunt lab up

## demo: a guided run with live numbers and a verdict
demo: build
	bin/shunt lab demo $(DEMO_FLAGS)

## bench: all suites; writes docs/benchmarks.md and its plots; installs HAProxy, and builds a Rust program when cargo is there
bench: build
	@scripts/setup.sh bench
	bin/shunt bench all --write docs

## chaos: ten minutes of kill -9, SIGSTOP, partitions and full disks; SHUNT_CHAOS_MINUTES and SHUNT_CHAOS_SEED choose
chaos: build
	SHUNT_CHAOS_MINUTES=$${SHUNT_CHAOS_MINUTES:-10} go test -count=1 -timeout 3h -v ./test/chaos

clean:
	rm -rf bin
	find internal -name '*_bpfel.o' -delete
