# Two commands do all the set-up:  make bench   and   make test
#
#   make bench     make both environments, fetch the small model, run the benchmarks on this machine's CPU
#   make test      make both environments, run the whole test suite (linters included)
#   make ui        open the results in MLflow
#   make harness   only `.venv`: pytest, neuronbench, MLflow
#   make stack     only `.venv-cpu`: torch, vLLM for CPU, transformers
#   make lint      ruff, mypy, import contracts
#   make clean     remove caches;  make distclean also removes the two environments
#   make lock-harness, make lock-stack    resolve the pins in requirements/ afresh
#
# Variables: PYTHON=/path/to/python3.11   PIP_FLAGS="--extra-index-url ..."   BENCH_ARGS="--nb-grid full"   TEST_ARGS="-k cli"   TEST_WORKERS=4

SETUP := sh requirements/setup.sh
RUN := .venv/bin/python -m
BENCH_ARGS ?=
TEST_ARGS ?=
TEST_WORKERS ?= 2
PIP_FLAGS ?=
export PYTHON

.PHONY: help bench test harness stack lint ui clean distclean lock-harness lock-stack

help:
	@sed -n 's/^#$$//p; s/^# //p' Makefile

bench: harness stack
	.venv/bin/neuronbench models fetch --role smoke
	$(RUN) pytest benchmarks -m cpu $(BENCH_ARGS)

test: harness stack
	$(RUN) pytest -n $(TEST_WORKERS) --dist loadfile $(TEST_ARGS)

harness:
	@$(SETUP) ensure harness --pip-flags="$(PIP_FLAGS)"

stack:
	@$(SETUP) ensure stack --pip-flags="$(PIP_FLAGS)"

lint: harness
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

ui: harness
	.venv/bin/neuronbench ui

lock-harness:
	@$(SETUP) lock harness --pip-flags="$(PIP_FLAGS)"

lock-stack:
	@$(SETUP) lock stack --pip-flags="$(PIP_FLAGS)"

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	find . \( -name '.venv*' -o -name .git -o -name mlruns -o -name node_modules \) -prune -o -name __pycache__ -type d -print | xargs rm -rf

distclean:
	@$(SETUP) remove harness stack
	@$(MAKE) --no-print-directory clean
