# `make` lists what there is. `make demo` and `make test` are all that a newcomer needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

BIN := $(CURDIR)/bin
export PATH := $(BIN):$(PATH)

# Modules of the workspace, and those that stay out of it since their dependencies must not reach the others.
MODULES = $(patsubst ./%,%,$(shell go work edit -json | sed -n 's/.*"DiskPath": "\(.*\)".*/\1/p'))
ALONE := tools/generate tools/kubelab deploy/helm
# Patterns for one call of a tool over the whole workspace: each dependency is then type-checked once and not once per
# module.
PACKAGES = $(addprefix ./,$(addsuffix /...,$(MODULES)))
PROGRAMS := $(patsubst %/main.go,./%,$(wildcard services/*/cmd/*/main.go)) ./tools/lockstep

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
# What tests compile serves other checks, too.
AS_TESTS := GOFLAGS=-race
# Static, the same bytes from the same sources wherever they lie, and without what only debuggers need.
BUILD = CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X lockstep.internal/libs/service.version=$(VERSION)'

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Start everything on this machine, create a workspace, watch it become Running
	@echo "building lockstep …"
	@mkdir -p $(BIN)
	@go build -o $(BIN)/ ./tools/lockstep ./services/gateway/cmd/workspace-agent
	@exec $(BIN)/lockstep up --demo

# The packages of end-to-end tests that start systems, longest first: none is left running alone at the end.
SYSTEM_TESTS := $(addprefix ./e2e/,recovery workspaces deploys relay security cli runners admission gateway natscluster scale)
OTHER_TESTS = $(filter-out ./e2e/...,$(PACKAGES)) ./e2e/controllers/... ./e2e/subscribers/...
# go test prints a line for each package when it ends. Each step of a test has its own deadline; TIMEOUT ends a package
# that hangs.
TIMEOUT ?= 30m
# The linter vets. Vetting here would type-check all dependencies once more beside the build.
UNVETTED = go test -vet=off -timeout $(TIMEOUT)
# Packages wait a lot, so more of them run at once than there are processors.
GO_TEST = $(UNVETTED) -race -p $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# The data of tests' databases and streams is in memory where 4 GB are free; they take up to 0.5 GB per package.
# Creating the files of a database on a disk costs more of the processor than all that PostgreSQL does. What go compiles
# stays on the disk.
MEMORY := $(shell findmnt -nbo AVAIL,OPTIONS /dev/shm 2>/dev/null | tail -n 1 | awk '$$1 >= 4e9 && $$2 !~ /noexec/ {print "/dev/shm"}')
ifneq ($(MEMORY),)
test test-short: export GOTMPDIR := $(or $(GOTMPDIR),$(TMPDIR),/tmp)
test test-short: export TMPDIR := $(MEMORY)
endif

.PHONY: test
test: kubelab ## Run every test: unit, integration and end to end, against real parts, with the race detector
	@# End-to-end tests build these programs. Compiled before, they are only linked there, and no test waits for minutes.
	@go list -export $(PROGRAMS) >/dev/null
	$(GO_TEST) $(SYSTEM_TESTS) $(OTHER_TESTS)
	@# These read files of other modules, which the test cache does not notice.
	$(GO_TEST) -count=1 ./e2e/architecture ./e2e/deployment
	@for m in $(ALONE); do echo "go test ./$$m/..."; (cd $$m && GOWORK=off $(UNVETTED) -count=1 -parallel 6 ./...); done

# Packages whose tests start a control plane or PostgreSQL, measure, or build programs in other languages.
LONG_TESTS = $(addprefix lockstep.internal/,e2e/controllers e2e/subscribers tools/bench tools/chaos \
  $(shell grep -rlE --include='*_test.go' '\blab\.Start\b|\blabtest\.Main\b|/testkit/pg(test)?"' services libs tools | xargs -n1 dirname | sort -u))

.PHONY: test-short
test-short: ## Run the tests that need neither Kubernetes nor PostgreSQL: for editing
	@# With the flags of `make test`, so that what passed there and has not changed is not run again.
	$(GO_TEST) $(filter-out $(LONG_TESTS),$(shell go list $(OTHER_TESTS)))
	$(GO_TEST) -count=1 ./e2e/architecture

.PHONY: chaos
CHAOS_ROUNDS ?= 1
CHAOS_DURATION ?= 12m
CHAOS_SEED ?= 0
chaos: kubelab ## Run a system under random faults for CHAOS_DURATION, CHAOS_ROUNDS times (0 = until one fails); CHAOS_SEED repeats one
	@round=0; while [ "$(CHAOS_ROUNDS)" = 0 ] || [ $$round -lt $(CHAOS_ROUNDS) ]; do \
	  round=$$((round + 1)); echo "chaos: round $$round"; \
	  go run -race ./tools/chaos --seed $(CHAOS_SEED) --duration $(CHAOS_DURATION) || exit 1; \
	done

.PHONY: histories
HISTORIES ?= 100000
HISTORIES_FIRST ?= 0
HISTORIES_SEED ?=
histories: ## Simulate HISTORIES of rollouts of each kind, from seed HISTORIES_FIRST on; HISTORIES_SEED repeats one
	LOCKSTEP_HISTORIES=$(HISTORIES) LOCKSTEP_FIRST_SEED=$(HISTORIES_FIRST) LOCKSTEP_SEED=$(HISTORIES_SEED) \
	  go test -vet=off -count=1 -timeout 0 \
	  -run '^(TestEachRolloutIsReportedOnce|TestUnobservedRevisionsAreReportedInGap)$$' ./services/deploys/rollout

.PHONY: kubelab
kubelab: ## Build the Kubernetes control plane for development and tests
	@go run ./tools/testkit/lab/build

.PHONY: minio
minio: ## Build MinIO, a server of the S3 protocol, for the tests of LOCKSTEP_MINIO=$PWD/bin/minio
	@mkdir -p $(BIN)
	cd tools/s3server && GOWORK=off CGO_ENABLED=0 go build -o $(BIN)/minio github.com/minio/minio

.PHONY: build
build: ## Build every program into bin/
	@mkdir -p $(BIN)
	$(BUILD) -o $(BIN)/ $(PROGRAMS)

.PHONY: images
images: CONTEXT = $(BIN)/image
images: ## Build a container image from scratch for each service and the CLI (pulls nothing)
	@rm -rf $(CONTEXT) && mkdir -p $(CONTEXT) && install -d -m 0700 $(CONTEXT)/data/{nats{,/keys,/deploys,/runners,/admission,/gateway,/router,/relay,/operator},postgres{,/state,/deploys,/runners,/admission},jetstream,state,admin,runners,admission,gateway,artifacts,relay,relay-ca,agent}
	GOOS=linux $(BUILD) -o $(CONTEXT)/ $(PROGRAMS)
	@for p in $(notdir $(PROGRAMS)); do \
	  docker build -q -f deploy/Dockerfile --build-arg PROGRAM=$$p --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) \
	    -t lockstep/$$p:$(VERSION) -t lockstep/$$p:latest $(CONTEXT) >/dev/null; \
	  echo "lockstep/$$p:$(VERSION)"; done

.PHONY: modules
modules: ## Build all modules as one workspace, and each alone
	$(AS_TESTS) go list -export work >/dev/null
	@# A module alone compiles with the flags of the tests, so that only what differs from the workspace is compiled again; list -export
	@# compiles and does not link.
	@for m in $(MODULES); do echo "GOWORK=off $$m"; (cd $$m && export GOWORK=off $(AS_TESTS) && go mod tidy -diff && go list -export ./... >/dev/null); done
	@for m in $(ALONE); do echo "GOWORK=off $$m"; (cd $$m && export GOWORK=off && go mod tidy -diff && go list -export ./... >/dev/null); done

.PHONY: lint
lint: $(BIN)/golangci-lint ## Check style and known mistakes in every module
	$(AS_TESTS) golangci-lint run --config .golangci.yaml $(PACKAGES)
	@for m in $(ALONE); do echo "golangci-lint $$m"; (cd $$m && GOWORK=off golangci-lint run --config $(CURDIR)/.golangci.yaml ./...); done

.PHONY: deps
DEPS ?= deploy/deps
deps: ## Write the modules that each program is built from to deploy/deps
	@mkdir -p $(DEPS)
	@for p in $(PROGRAMS); do \
	  GOOS=linux GOARCH=amd64 CGO_ENABLED=0 go list -deps -f '{{with .Module}}{{.Path}}{{end}}' $$p | LC_ALL=C sort -u >$(DEPS)/$$(basename $$p).txt; done

.PHONY: vuln
vuln: $(BIN)/govulncheck ## Look for known vulnerabilities (needs https://vuln.go.dev)
	@for m in $(MODULES) $(ALONE); do echo "govulncheck $$m"; (cd $$m && GOWORK=off govulncheck ./...); done

.PHONY: generate
generate: ## Generate Go, AsyncAPI and error codes from schemas/
	cd tools/generate && GOWORK=off go run .

.PHONY: verify
verify: ## Fail when a generated file is stale or a schema breaks its readers
	cd tools/generate && GOWORK=off go run . --check
	@now=$$(mktemp -d) && trap 'rm -rf "$$now"' EXIT && $(MAKE) -s deps DEPS=$$now && \
	  { diff -ru deploy/deps $$now || { echo "the programs' modules have changed: run make deps and review deploy/deps" >&2; exit 1; }; }

.PHONY: bench
bench: ## Run every benchmark beside its baseline and print a table
	@mkdir -p $(BIN) && go build -o $(BIN)/bench ./tools/bench
	@$(BIN)/bench run --table | tee $(BIN)/bench.txt

.PHONY: bench-gate
bench-gate: ## Run the short benchmarks, at most three minutes, and fail when a ratio is beyond its margin
	@mkdir -p $(BIN) && go build -o $(BIN)/bench ./tools/bench
	@$(BIN)/bench run --short --table

.PHONY: fuzz
FUZZTIME ?= 20s
fuzz: ## Fuzz every fuzz target for FUZZTIME each
	@for m in $(MODULES) tools/generate; do \
	  (cd $$m && { grep -rlE '^func Fuzz' --include='*_test.go' . || true; } | while read -r f; do \
	    grep -oE '^func Fuzz[A-Za-z0-9_]+' "$$f" | sed 's/func //' | while read -r t; do \
	      echo "$$m $$(dirname $$f) $$t"; GOWORK=off go test "$$(dirname $$f)" -run '^$$' -fuzz "^$$t$$" -fuzztime $(FUZZTIME); done; done); done

# Each tool is built when it is asked for, at the version in tools/lint/go.mod.
$(BIN)/golangci-lint: TOOL := github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(BIN)/govulncheck: TOOL := golang.org/x/vuln/cmd/govulncheck
$(BIN)/golangci-lint $(BIN)/govulncheck: tools/lint/go.mod
	@echo "building $(@F), some minutes the first time …"
	@cd tools/lint && GOWORK=off GOBIN=$(BIN) go install $(TOOL) && touch $@
