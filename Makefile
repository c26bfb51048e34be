# make up     run the bridge here (installs what it needs into .venv first)
# make dev    install everything that development needs
# make test   the tests
# make sim    histories of the whole bridge on a virtual clock, SEEDS=N of them
# make test-faults  kills, stops, a full disk, a bad tunnel, with real processes for longer than `make test`
#                    has them: at most 8 minutes; CHAPPIE_SEED=N for the moments of one that failed
# make guards  each guard taken away once: at most 10 minutes; writes docs/security-guards.md
# make mutants  bugs put in on purpose, and the seed that finds each
# make check  formatting, lint, types, import rules: under 90 seconds
# make conformance   the public MCP conformance suite: at most 8 minutes, its installation included
# make test-clients  MCP clients that nobody here wrote: at most 8 minutes, their installation included
# make test-hosts    agent programs, driven without a model: at most 20 minutes, their installation included;
#                    CHAPPIE_HOSTS="pi codex" drives these alone, in at most 15
# make test-browser  the question's page and the dashboard in a real Chromium: at most 8 minutes, its hosts'
#                    installation included; `make test` does it, too, where a Chromium is found
# make bench  every measured claim of bench/, a row each in bench/results.md

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: up dev test sim test-faults guards mutants check conformance test-clients test-hosts test-browser bench format lint mypy pyright imports

PYTHON ?= python3
BIN := .venv/bin
PY := $(BIN)/python
UV := $(shell command -v uv)
INSTALL := $(if $(UV),uv pip install --quiet --python $(PY),$(PY) -m pip install --quiet --disable-pip-version-check --no-compile)

up: .venv/.installed
	@exec $(BIN)/chappie-bridge up $(ARGS)

dev: .venv/.developed

test: .venv/.developed
	$(PY) -m pytest -q $(ARGS)

SEEDS ?= 1000
sim: .venv/.developed
	$(PY) -m tests.sim --seeds $(SEEDS) $(ARGS)

test-faults: .venv/.developed
	CHAPPIE_FAULTS=long $(PY) -m pytest -q tests/faults $(ARGS)

guards: .venv/.developed
	$(PY) -m tests.security.guards $(ARGS)

mutants: .venv/.developed
	$(PY) -m tests.sim.mutants $(ARGS)

conformance: .venv/.developed
	$(PY) -m tests.conformance

test-clients: .venv/.developed
	$(PY) -m pytest -q tests/clients $(ARGS)

test-hosts: .venv/.developed
	$(PY) -m pytest tests/hosts --durations=5 $(ARGS)

test-browser: .venv/.developed
	$(PY) -m pytest -q tests/browser $(ARGS)

check: .venv/.developed
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target format lint mypy pyright imports

format:
	$(BIN)/ruff format --check --quiet .
lint:
	$(BIN)/ruff check --quiet .
mypy:
	$(BIN)/mypy --no-error-summary
pyright:
	$(BIN)/pyright --pythonpath $(PY)
imports:
	$(BIN)/lint-imports --no-cache

bench: .venv/.developed
	@for program in bench/[a-z]*.py; do echo "$$program"; $(PY) "$$program"; done

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "chappie-bridge needs Python 3.11 or newer; name one with make PYTHON=python3.12" >&2; exit 1; }
	$(if $(UV),uv venv --quiet --python $(PYTHON) .venv,$(PYTHON) -m venv .venv)

.venv/.installed: pyproject.toml | $(PY)
	$(INSTALL) --only-binary toktok-rs --editable '.[speed,tokens]' || $(INSTALL) --editable '.[speed]'
	@touch $@

# The groups are read here because the pip of a new environment may be older than `--group`.
.venv/.developed: pyproject.toml .venv/.installed
	@$(PY) -c 'import tomllib; g = tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]; print(*sum(g.values(), []), sep="\n")' > .venv/groups.txt
	$(INSTALL) --requirement .venv/groups.txt
	@touch $@
