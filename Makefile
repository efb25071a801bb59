# Headrace: `make` alone lists what there is to run.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := .venv-demo
# Pythons of pyenv, the newest first: its commands work only for those that are switched on.
PYENV = $(shell ls -dr "$(HOME)"/.pyenv/versions/3.1[2-9]*/bin/python 2>/dev/null)
NEWER = $(shell for one in python3.14 python3.13 python3.12 $(PYENV); do $$one -c '' 2>/dev/null && echo $$one && break; done)
# Tests wait for servers and leases as much as they compute, so there are two processes more than cores.
PROCESSES = $(shell $(BIN)/python -c 'import os; print(os.cpu_count() + 2)')
# A commit draws the same variants and the same order each time: a red run can be had again, and CI runs what you ran.
SEED = $(shell printf '%d' "0x$$(git rev-parse --short=7 HEAD 2>/dev/null || echo 1)")
PYTEST = $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal --randomly-seed $(SEED)
# Tests start hundreds of processes, each of which would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo setup check test test-all test-django tests lint chromium pictures bench chaos docs format clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

# Uses uv where it is installed, else plain pip; both show what they do.
$(STAMP): pyproject.toml
	@echo "== setting up $(VENV) (once, about a minute)"
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing --python $(PYTHON) $(VENV) && \
	  uv pip install --python $(BIN)/python -e '.[dev,fast,objects,postgres,redis,testing,vault,web]' --group project; \
	else \
	  $(PYTHON) -m venv $(VENV) && \
	  $(BIN)/python -m pip install --disable-pip-version-check --upgrade 'pip>=25.1' && \
	  $(BIN)/python -m pip install --disable-pip-version-check -e '.[dev,fast,objects,postgres,redis,testing,vault,web]' --group project; \
	fi
	@touch $@

# The demo needs only the package itself, and gets a set-up of its own.
$(DEMO)/.installed: pyproject.toml
	@echo "== setting up $(DEMO) (once, some seconds)"
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing --python $(PYTHON) $(DEMO) && \
	  uv pip install --quiet --python $(DEMO)/bin/python -e '.[dev,web]'; \
	else \
	  $(PYTHON) -m venv $(DEMO) && \
	  $(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev,web]'; \
	fi
	@touch $@

demo: $(DEMO)/.installed ## what sets Headrace apart, in a minute on SQLite; leaves a project in ./demo to play with
	@$(DEMO)/bin/python examples/pipeline/run.py

setup: $(STAMP) ## install everything that development needs

check: lint ## lint, types, import contracts, unit tests (no server, no process): in a minute
	$(PYTEST) tests/unit

test: chromium ## lint and all tests, against real stores; of pairs, crash points, seeds and old servers, a sample
	@$(MAKE) --jobs=2 lint tests

test-all: chromium ## the same without sampling, and Django's tests on the newest Django if there is a newer Python
	@$(MAKE) --jobs=2 lint tests SAMPLE=--all
	@if [ -n "$(NEWER)" ]; then $(MAKE) test-django; else echo "no Python 3.12 or newer: no tests on Django 6"; fi

# Django 6 needs Python 3.12. A set-up of its own has the newest Django that the newest Python here can run.
test-django:
	$(MAKE) tests VENV=$(VENV)-newer PYTHON=$(NEWER) SAMPLE=tests/contrib/test_django.py

# Lint computes on one core, while tests wait for servers as much as they compute: side by side they take less time.
tests: $(STAMP)
	$(PYTEST) $(SAMPLE)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The dashboard is tested in a real browser: one that is there, or the distribution's, or Playwright's.
chromium: $(STAMP)
	@$(BIN)/python -m tests.chromium

pictures: $(STAMP) chromium ## draw the docs' pictures of the dashboard anew
	HEADRACE_PICTURES=docs/howto/pictures $(BIN)/python -m pytest -q -p no:randomly tests/dashboard/test_pages.py

bench: $(STAMP) ## compare with other libraries and with the bare driver
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.studies.hot --plot docs/explain/pictures/hot.svg

chaos: $(STAMP) ## kill workers under load, and check that nothing was lost
	$(BIN)/python -m chaos

docs: $(STAMP) ## run every example in the docs and check their links
	$(BIN)/python -m pytest -q tests/test_docs.py tests/test_doctests.py

format: $(STAMP) ## rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what the other targets made
	rm -rf $(VENV) $(VENV)-newer $(DEMO) .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
