.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
# Compiled modules are kept: each replica that a test starts imports torch's nine hundred.
unexport PYTHONDONTWRITEBYTECODE

UV_VERSION := 0.13.9
BIN := .venv/bin
PY := $(BIN)/python
READY := .venv/.ready
BUILD_LOCK := devcluster/images/build.txt
ROOMS := api kernels runtime balancer operator cli devcluster
SOURCES := $(ROOMS) tests benchmarks charts docs
# How tests run that share nothing but caches: a file in one process, for what its fixtures compile.
PARALLEL := -n 2 --dist loadfile

##@ Use

help: ## Show this help
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	/^[a-z-]+:.*##/ {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## Kubernetes, images, chart, a streamed answer and a live scale-up, from nothing
	@$(PY) -m fastgen_devcluster.demo

demo-down: cluster-down ## Remove everything that the demo started

serve: $(READY) ## Serve SmolLM2 on this machine without Kubernetes
	@$(BIN)/fastgen serve smollm2

##@ Develop

setup: $(READY) ## Make the virtual environment from the lock

# xds-protos holds some of opentelemetry-proto's modules, older ones: the others have to come last.
$(READY): requirements/dev.txt pyproject.toml
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; python3 is $$(python3 --version)" >&2; exit 1; }
	@python3 -c 'import ensurepip' 2>/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv; } || \
	  { echo "The Python module venv is missing: run 'apt-get install python3-venv' as root" >&2; exit 1; }
	@echo "Making the virtual environment (.venv) from requirements/dev.txt"; start=$$SECONDS; \
	python3 -m venv .venv && $(BIN)/pip install -q --disable-pip-version-check uv==$(UV_VERSION) && \
	$(BIN)/uv pip sync -q --python $(PY) --require-hashes requirements/dev.txt && \
	$(BIN)/uv pip install -q --python $(PY) --no-deps --require-hashes \
	  --reinstall-package opentelemetry-proto -r requirements/dev.txt && \
	$(BIN)/uv pip install -q --python $(PY) --no-deps -e . && \
	$(BIN)/pip install -q --disable-pip-version-check uv==$(UV_VERSION) && \
	touch $@ && echo "Virtual environment ready in $$((SECONDS - start)) s"

fmt: $(READY) ## Format the code
	@$(BIN)/ruff format -q $(wildcard $(SOURCES)) && $(BIN)/ruff check -q --fix $(wildcard $(SOURCES))

lint: $(READY) ## Check format, lint, types and import rules
	@$(BIN)/ruff format --check -q $(wildcard $(SOURCES))
	@$(BIN)/ruff check -q $(wildcard $(SOURCES))
	@$(BIN)/lint-imports
	@$(BIN)/mypy

check: lint ## For every commit: lint and unit tests (about 3 minutes)
	@$(BIN)/pytest -q $(PARALLEL) tests/unit

test: check ## Everything, the cluster included
	@$(BIN)/pytest $(PARALLEL) tests/kernels -m "not slow and not gpu"
	@$(BIN)/pytest tests --ignore=tests/unit --ignore=tests/kernels -m "not slow and not cluster and not gpu"
	@$(PY) -m fastgen_devcluster up
	@$(BIN)/pytest tests -m "cluster and not slow"

test-slow: $(READY) ## The tests that take longer than make test may
	@$(PY) -m fastgen_devcluster up
	@$(BIN)/pytest tests -m slow

proto: $(READY) ## Generate the gRPC stubs
	@$(PY) -m grpc_tools.protoc -I api --python_out=api --pyi_out=api --grpc_python_out=api \
	  api/fastgen_api/v1/inference.proto

chart: $(READY) ## Write the chart's copy of the CRD, its dashboard and alerts, and the docs' tables
	@$(PY) charts/copy_crds.py && $(PY) charts/dashboard.py && $(PY) charts/operator_alerts.py && $(PY) docs/api_reference.py

lock: $(READY) ## Lock the dependencies of pyproject.toml
	@for set in "control --extra operator --extra balancer" "runtime --extra runtime" "dev --extra dev"; do \
	  read -r name extras <<< "$$set"; \
	  $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate \
	    --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
	    $$extras -o requirements/$$name.txt pyproject.toml; done
	@cp $(BUILD_LOCK) $(BUILD_LOCK).new; \
	{ $(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")'; \
	  echo uv==$(UV_VERSION); } | \
	  $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	    --no-emit-index-url --no-emit-find-links -o $(BUILD_LOCK).new - && \
	{ echo "# What builds the images: the installer and the builder of the wheel."; \
	  cat $(BUILD_LOCK).new; } > $(BUILD_LOCK) && rm $(BUILD_LOCK).new

lock-peers: $(READY) ## Lock the environments of the engines that bench-peers compares with
	@cd benchmarks/peers/locks && for name in openvino openvino-export vllm; do \
	  $(CURDIR)/$(BIN)/uv pip compile -q --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	    --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links \
	    --no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec \
	    --custom-compile-command "make lock-peers" \
	    $$([ $$name = vllm ] && echo --override vllm-override.in) -o $$name.txt $$name.in; done

##@ Measure

bench-peers: $(READY) ## This engine beside OpenVINO GenAI, vLLM and llama.cpp (hours; ARGUMENTS=--quick)
	@PYTHONPATH=benchmarks:tests/harness$${PYTHONPATH:+:$$PYTHONPATH} $(PY) -m peers $(ARGUMENTS)

##@ Cluster

cluster-up: $(READY) ## Start the development cluster
	@$(PY) -m fastgen_devcluster up

cluster-down: $(READY) ## Stop it and leave nothing behind
	@$(PY) -m fastgen_devcluster down

images: $(READY) ## Build the images and push them to the cluster
	@$(PY) -m fastgen_devcluster build-images

.PHONY: help demo demo-down serve setup fmt lint check test test-slow proto chart lock lock-peers bench-peers \
  cluster-up cluster-down images
