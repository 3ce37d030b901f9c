# Decurion's commands. `make help` lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCKS := requirements/bootstrap.lock requirements/dev.lock

# Packages come from where this machine is set up to get them, over the authorities that it trusts.
export UV_SYSTEM_CERTS ?= true

# Without bytecode every process of the tests would compile its libraries again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List the targets
	@echo "Decurion: agent graphs on Kubernetes. Targets (ARGS=\"...\" is handed on where it is shown):"
	sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name text; do
	  printf '  make %-9s %s\n' "$$name" "$$text"
	done

.PHONY: setup
setup: $(READY) ## Make .venv with everything, as locked: a minute or so the first time, nothing after that

.PHONY: demo
demo: ## Run the example over real filings with a small real model on this machine (ARGS)
	@begin=$$SECONDS
	$(MAKE) setup
	ready=$$SECONDS
	$(BIN)/python hack/demo/run.py $(ARGS)
	echo "Set-up took $$((ready - begin)) s, the demo $$((SECONDS - ready)) s."

.PHONY: test
test: setup ## Run all tests that can run here and say which cannot (ARGS="tests/ledger -k segment")
	@$(BIN)/python -m pytest $(ARGS)

.PHONY: cluster
cluster: ## Build the Kubernetes API server that some tests need: needs Go, takes 7 to 10 minutes once
	@$(PYTHON) hack/cluster/binary.py build
	echo "The API server of the tests is $$($(PYTHON) hack/cluster/binary.py path); \`make test\` uses it from now on."

.PHONY: lint
lint: setup ## Check style, types, layers, and that definitions and reference are those of the models
	@failed=
	$(BIN)/ruff check . || failed="$$failed ruff-check"
	$(BIN)/ruff format --check . || failed="$$failed ruff-format"
	$(BIN)/mypy || failed="$$failed mypy"
	$(BIN)/lint-imports --no-logo --no-cache || failed="$$failed layers"
	$(BIN)/python -m decurion_crds.structural --check || failed="$$failed crds/manifests"
	$(BIN)/python hack/reference.py --check || failed="$$failed docs/reference"
	$(BIN)/python -m decurion_crds.editor --check || failed="$$failed docs/schema"
	if [ -n "$$failed" ]; then echo "make lint: these checks failed, see above:$$failed" >&2; exit 1; fi

.PHONY: bench
bench: setup ## Measure, beside a peer or a limit measured in the same run (ARGS="fanout|runs")
	@$(BIN)/python hack/bench $(ARGS)

.PHONY: chaos
chaos: setup ## Real parts under seeded blows for an hour, every run checked (ARGS="--minutes 5 --seed 1")
	@$(BIN)/python hack/chaos $(ARGS)

.PHONY: soak
soak: setup ## Thousands of random graphs, each cut off and resumed, every one checked (ARGS="graphs --seeds 20000")
	@$(BIN)/python hack/soak $(or $(ARGS),graphs)

.PHONY: lock
lock: setup ## Lock the versions anew after a change of pyproject.toml (ARGS=--upgrade takes newer ones)
	@options=(--quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links --python-version
	  3.11 --custom-compile-command "make lock" $(ARGS)) # a line that begins with - would lose it to make
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --group demo "$${options[@]}" -o requirements/dev.lock
	$(BIN)/uv pip compile - --constraints requirements/dev.lock --no-annotate "$${options[@]}" \
	  -o requirements/bootstrap.lock <<<uv
	$(BIN)/uv pip compile hack/bench/peers/requirements.in "$${options[@]}" -o requirements/bench.lock

# A .venv is of no use once its Python is gone or the folder has been moved.
ifneq ($(shell $(BIN)/python -c pass 2>/dev/null && cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif

$(READY): $(LOCKS) pyproject.toml
	@begin=$$SECONDS
	version=$$($(PYTHON) -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])') || {
	  echo "make setup: there is no $(PYTHON); install Python 3.11 or newer, or name one: make setup PYTHON=python3.12" >&2
	  exit 3
	}
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
	  echo "make setup: $(PYTHON) is Python $$version and 3.11 or newer is needed; name one: make setup PYTHON=python3.12" >&2
	  exit 3
	}
	echo "Setting up $(VENV) with Python $$version and the locked packages (the first time 400 MB to download, 1 GB on disk)."
	if ! $(BIN)/python -m uv --version >/dev/null 2>&1 || [ "$$(cat $(READY) 2>/dev/null)" != "$(CURDIR)" ]; then
	  $(PYTHON) -m venv --clear $(VENV) || {
	    echo "make setup: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu install python3-venv" >&2
	    exit 3
	  }
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.lock
	fi
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	echo "$(CURDIR)" > $@
	echo "$(VENV) is ready after $$((SECONDS - begin)) s."
