# `make` lists what there is. `make demo` and `make test` are all that a newcomer needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

BIN := $(CURDIR)/bin
export PATH := $(BIN):$(PATH)

# Modules of the workspace, and those that stay out of it since their dependencies must not reach the others.
MODULES := $(shell go work edit -json | sed -n 's/.*"DiskPath": "\(.*\)".*/\1/p')
ALONE := tools/generate tools/kubelab
SERVICES := $(notdir $(wildcard services/*))
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X lockstep.internal/libs/service.version=$(VERSION)

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  \033[1m%-10s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Start everything on this machine, create a workspace, watch it become Running
	@echo "building lockstep …"
	@go build -o $(BIN)/lockstep ./tools/lockstep
	@exec $(BIN)/lockstep up --demo

.PHONY: test
test: kubelab ## Run every test: unit, integration and end to end, against real parts, with the race detector
	go test -race -timeout 20m work
	@for m in $(ALONE); do echo "go test ./$$m/..."; (cd $$m && GOWORK=off go test -count=1 -timeout 20m ./...); done

.PHONY: kubelab
kubelab: ## Build the Kubernetes control plane for development and tests
	@go run ./tools/testkit/lab/build

.PHONY: build
build: ## Build every program into bin/
	@mkdir -p $(BIN)
	@for s in $(SERVICES); do echo "bin/$$s"; CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./services/$$s/cmd/...; done
	@echo bin/lockstep; CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/lockstep ./tools/lockstep

.PHONY: modules
modules: ## Build and vet each module alone, and all of them as one workspace
	go build work
	go vet work
	@for m in $(MODULES) $(ALONE); do echo "GOWORK=off $$m"; (cd $$m && GOWORK=off go build ./... && GOWORK=off go vet ./... && GOWORK=off go mod tidy -diff); done

.PHONY: lint
lint: $(BIN)/golangci-lint ## Check style and known mistakes in every module
	@for m in $(MODULES); do echo "golangci-lint $$m"; (cd $$m && golangci-lint run --config $(CURDIR)/.golangci.yaml ./...); done
	@for m in $(ALONE); do echo "golangci-lint $$m"; (cd $$m && GOWORK=off golangci-lint run --config $(CURDIR)/.golangci.yaml ./...); done

.PHONY: vuln
vuln: $(BIN)/govulncheck ## Look for known vulnerabilities (needs https://vuln.go.dev)
	@for m in $(MODULES) $(ALONE); do echo "govulncheck $$m"; (cd $$m && GOWORK=off govulncheck ./...); done

.PHONY: generate
generate: ## Generate Go, AsyncAPI and error codes from schemas/
	cd tools/generate && GOWORK=off go run .

.PHONY: verify
verify: ## Fail when a generated file is stale or a schema breaks its readers
	cd tools/generate && GOWORK=off go run . --check

.PHONY: bench
bench: ## Run every benchmark beside its baseline and print a table
	go run ./tools/bench run

.PHONY: fuzz
FUZZTIME ?= 20s
fuzz: ## Fuzz every fuzz target for FUZZTIME each
	@for m in $(MODULES) tools/generate; do \
	  (cd $$m && grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r f; do \
	    grep -oE '^func Fuzz[A-Za-z0-9_]+' "$$f" | sed 's/func //' | while read -r t; do \
	      echo "$$m $$(dirname $$f) $$t"; GOWORK=off go test "$$(dirname $$f)" -run '^$$' -fuzz "^$$t$$" -fuzztime $(FUZZTIME); done; done); done

.PHONY: images
images: ## Build a container image from scratch for each service and the CLI
	@for s in $(SERVICES); do docker build -f deploy/Dockerfile --build-arg PROGRAM=./services/$$s/cmd/$$s --build-arg VERSION=$(VERSION) -t lockstep/$$s:$(VERSION) .; done
	docker build -f deploy/Dockerfile --build-arg PROGRAM=./tools/lockstep --build-arg VERSION=$(VERSION) -t lockstep/lockstep:$(VERSION) .

$(BIN)/golangci-lint $(BIN)/govulncheck: tools/lint/go.mod
	@echo "building the linters, some minutes the first time …"
	@cd tools/lint && GOWORK=off GOBIN=$(BIN) go install tool && touch $(BIN)/golangci-lint $(BIN)/govulncheck
