# Every target calls one tool. `make demo` and `make test` set up all they need, from Python 3.11 or later on.
PYTHON ?= python3
VENV ?= .venv
CLIENTS ?= .venv-clients
TORCH ?= torch==2.13.0
BENCH ?= bookkeeping
PYTEST_ARGS ?=
ARM_CXX ?= aarch64-linux-gnu-g++ -std=gnu++20 -O3 -fno-math-errno -Wall -Wextra -Wno-psabi -fopenmp -DKV_ISA=portable -DKV_ISA_portable

# Threads that wait for work sleep instead of spinning: on shared cores spinning costs several times the step itself.
export OMP_WAIT_POLICY ?= passive

RUN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help venv model demo test test-clients test-heavy sanitize arm check bench docs clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | awk -F'|' '{ printf "make %-12s %s\n", $$1, $$2 }'

venv: $(INSTALLED) ## make the virtual environment, or bring it up to date

# Without build isolation the build tools are the locked ones, and a changed kernel is all that is compiled again.
$(INSTALLED): pyproject.toml constraints.txt $(wildcard csrc/* csrc/*/*)
	test -x $(RUN)/python || $(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet -c constraints.txt "$(TORCH)" scikit-build-core nanobind cmake ninja
	$(RUN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[all,dev]'
	@$(RUN)/python -c "from kvpager import native; print('native kernels:', native.why_not() or native.module().isa())"
	touch $@

model: venv ## fetch the small real model, once
	$(RUN)/kvpager model fetch smollm2

demo: model ## real prompts on a real model in a small pool, live
	$(RUN)/kvpager demo

test: model ## all tests but the heavy ones, under ten minutes on two cores
	OMP_NUM_THREADS=1 $(RUN)/python -m pytest -q -n auto --maxprocesses 8 --dist worksteal -m "not heavy and not clients" $(PYTEST_ARGS)

test-clients: model ## clients that are heavy, against a real server; in a virtual environment of their own
	test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet "$(TORCH)" -r tests/clients/requirements.txt
	$(RUN)/python -m pytest -q -m clients tests/clients $(PYTEST_ARGS)

test-heavy: model ## the long runs, by hand before a release
	$(RUN)/python -m pytest -q -m heavy $(PYTEST_ARGS)

sanitize: venv ## the native kernels' tests against builds with sanitizers; needs GCC
	$(RUN)/python tests/native/sanitize.py address
	$(RUN)/python tests/native/sanitize.py thread

arm: ## compile the native kernels for 64-bit Arm; needs aarch64-linux-gnu-g++
	mkdir -p build/arm
	set -e; for source in csrc/*.isa.cpp csrc/isa.cpp csrc/threads.cpp; do $(ARM_CXX) -c $$source -o build/arm/$$(basename $$source).o; done

check: venv ## lint, format, types, and the direction of imports
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/lint-imports

bench: model ## one benchmark as JSON: make bench BENCH=bookkeeping
	$(RUN)/kvpager bench $(BENCH) --json

docs: venv ## the pages that are made from tables, and the site
	$(RUN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[docs]'
	$(RUN)/python -c "from kvpager.config import options_table; print(options_table(), end='')" > docs/options.md
	$(RUN)/python -c "from kvpager.server.openai.requests_page import requests_page as page; print(page(), end='')" > docs/requests.md
	$(RUN)/kvpager metrics page > docs/metrics.md
	$(RUN)/kvpager metrics alerts-page > docs/alerts.md
	$(RUN)/mkdocs build --strict

clean: ## remove caches and build results; the virtual environment stays
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks .coverage
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
