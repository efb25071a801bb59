# Headrace: `make` alone lists what there is to run.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests wait for servers and leases as much as they compute, so there is one process more than cores.
PROCESSES = $(shell $(BIN)/python -c 'import os; print(os.cpu_count() + 1)')
PYTEST = $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal
# Tests start hundreds of processes, each of which would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo check test test-all lint bench chaos docs format clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

# Uses uv where it is installed, else plain pip; both show what they do.
$(STAMP): pyproject.toml
	@echo "== setting up $(VENV) (once, about a minute)"
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing --python $(PYTHON) $(VENV) && \
	  uv pip install --python $(BIN)/python -e '.[dev,fast,postgres,redis,testing]' --group project; \
	else \
	  $(PYTHON) -m venv $(VENV) && \
	  $(BIN)/python -m pip install --disable-pip-version-check --upgrade 'pip>=25.1' && \
	  $(BIN)/python -m pip install --disable-pip-version-check -e '.[dev,fast,postgres,redis,testing]' --group project; \
	fi
	@touch $@

demo: $(STAMP) ## a small pipeline on SQLite; leaves a project in ./demo to play with
	@$(BIN)/python examples/pipeline/run.py

check: lint ## lint, types, import contracts, unit tests (no server, no process): in a minute
	$(PYTEST) tests/unit

test: lint ## lint and all tests, against real stores; of pairs, crash points, seeds and old servers, a sample
	$(PYTEST)

test-all: lint ## the same without sampling
	$(PYTEST) --all

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP) ## compare with other libraries and with the bare driver
	$(BIN)/python -m benchmarks

chaos: $(STAMP) ## kill workers under load, and check that nothing was lost
	$(BIN)/python -m chaos

docs: $(STAMP) ## run every example in the docs and check their links
	$(BIN)/python -m pytest -q tests/test_docs.py tests/test_doctests.py

format: $(STAMP) ## rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what the other targets made
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
