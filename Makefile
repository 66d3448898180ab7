# Two commands matter: `make report` (what packpass gains, measured here) and `make test` (that it is right). A third,
# `make test-matrix`, says on which torch and which Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One thread per process: ratios on a small machine are steadier, and the test suite shares the cores with compilers.
export OMP_NUM_THREADS ?= 1
# Test processes; each needs about 1.5 GB.
JOBS ?= 2

# For test-matrix: the versions to look at (all of them if empty), and 1 for the whole suite on the newest and the oldest.
CELLS ?=
FULL ?=

.PHONY: help report test test-all test-matrix test-wild lint clean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*##' '/^[a-z-]+:.*##/ { printf "make %-13s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[test,perf,clients,lint]"
	$(BIN)/python -m pip install -q -c constraints.txt --no-deps megatron-core  # its extras need a CUDA machine
	touch $@

report: $(STAMP)  ## measure every perf case (under 10 minutes on 2 cores); tables here, JSON, plots and HTML in perf/results/
	$(BIN)/python -m perf

test: $(STAMP)  ## the tests (under 15 minutes on 2 cores), without the slow ones
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not slow and not wild" $(ARGS)

test-all: $(STAMP)  ## every test, the slow ones included
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not wild" $(ARGS)

test-matrix: $(STAMP)  ## other versions of torch and Python, in environments of their own (CELLS=..., FULL=1: the whole suite)
	$(BIN)/python -m tests.matrix $(CELLS) $(if $(filter-out 0,$(FULL)),--full) --jobs $(JOBS) $(ARGS)

test-wild: $(STAMP)  ## functions and models of public packages, unmodified (installed without their requirements in .wild)
	$(BIN)/python -m tests.wild.packages
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m wild tests/wild $(ARGS)

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check packpass passes perf
	$(BIN)/mypy

clean:  ## remove the environment, caches and results
	find perf/results -mindepth 1 -maxdepth 1 ! -name cuda -exec rm -rf {} + 2>/dev/null || true
	rm -rf $(VENV) .wild .pytest_cache .mypy_cache .ruff_cache .hypothesis
