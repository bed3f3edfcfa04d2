# Everything a developer types. `make` alone lists it.
SHELL := /bin/sh
.DEFAULT_GOAL := help

# The first Python on the PATH that is new enough; or name one: make PYTHON=python3.12 setup
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MEMBERS := shared services/center services/driver services/ack-listener services/simulator infra/local
MANIFESTS := $(MEMBERS:%=%/pyproject.toml)
SOURCES := shared services infra tests docs
INSTALL_PACKAGES := infra/local/src/laneway_local/install-packages.sh
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

.PHONY: help setup packages up down demo test chaos bench-quick check fmt docs lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(STAMP) ## Create the virtual environment with the locked dependencies

$(STAMP): requirements.lock $(MANIFESTS)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; install it and try again." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || sh $(INSTALL_PACKAGES) \
		"$$($(PYTHON) -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}-venv")')"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "Setting up $(VENV) ..."; $(PYTHON) -m venv --clear $(VENV); }
	@$(PIP) install -q --require-hashes --no-deps -r requirements.lock
	@$(PIP) install -q --no-deps --no-build-isolation $(MEMBERS:%=-e ./%)
	@touch $@

packages: setup
	@$(BIN)/laneway-local packages --tests

up: setup ## Start Laneway on this machine and leave it running; settings are in .local/stack.env
	@$(BIN)/laneway-local up

down: setup ## Stop what `make up` started
	@$(BIN)/laneway-local down

demo: setup ## Show commands on their way to devices, then stop
	@$(BIN)/laneway-local demo

test: packages ## Run all tests on private servers; ARGS="-k name" selects
	@mkdir -p .local/tmp
	@PYTEST_DEBUG_TEMPROOT=$(CURDIR)/.local/tmp $(BIN)/python -m pytest $(ARGS)

CHAOS := $(if $(COMMANDS),--commands $(COMMANDS)) $(if $(LANES),--lanes $(LANES)) $(if $(UNSAFE),--unsafe $(UNSAFE)) \
	$(if $(FAULTS),--faults $(FAULTS)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

chaos: packages ## Load and faults, then the checker; COMMANDS= LANES= UNSAFE= FAULTS= SECONDS= SEED=
	@PYTHONPATH=tests $(BIN)/python -m chaos.run $(CHAOS)

BENCH := $(if $(COMMANDS),--commands $(COMMANDS)) $(if $(LANES),--lanes $(LANES)) $(if $(SINGLE),--single $(SINGLE)) \
	$(if $(SAMPLES),--samples $(SAMPLES)) $(if $(FULL),--full) $(if $(ONLY),--only $(ONLY)) $(if $(REPEAT),--repeat $(REPEAT))

bench-quick: packages ## Measure whole jobs; COMMANDS= LANES= SINGLE= SAMPLES= FULL=1 ONLY=bulk,latency REPEAT=
	@PYTHONPATH=tests $(BIN)/python -m bench.run $(BENCH)

check: setup ## Format, lint, types and import rules
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: setup ## Format the source and fix what can be fixed
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

docs: setup ## Renew the reference files that follow from the code
	@$(BIN)/python docs/generate.py

lock: setup ## Renew requirements.lock from the members' pyproject.toml
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--no-emit-package laneway-shared --no-emit-package laneway-center --no-emit-package laneway-driver \
		--no-emit-package laneway-ack-listener --no-emit-package laneway-simulator --no-emit-package laneway-local \
		--group dev --group build pyproject.toml -o requirements.lock

clean: ## Stop everything and remove all that was made: .local, .venv, caches
	@if [ -x $(BIN)/laneway-local ]; then $(BIN)/laneway-local down; fi
	rm -rf .local $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
