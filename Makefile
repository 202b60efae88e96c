# Everything below works from a bare checkout with python3 (3.10 or later), a C++ compiler, make and
# a package index. The virtual environment, the build and the results of earlier calls are reused.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Processes that the test suite runs in: each gets a stretch of files, and later what others have
# not come to, so that all end together.
JOBS ?= 2
PARALLEL := -n $(JOBS) --dist worksteal

export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONPATH

FOLDERS := $(wildcard api graph ops backends models engine speculative server bench tools csrc)
SOURCES := $(sort $(shell find $(FOLDERS) -type f -not -path '*/__pycache__/*'))
CXX_FILES := $(wildcard $(foreach end,cpp hpp h cu cuh,csrc/*/*.$(end)))
# CUDA kernels: 1 or ON (needs nvcc), EMULATE (they run on the processor, for tests), or OFF.
RIVERRUN_CUDA ?= OFF
CUDA := $(if $(filter 1,$(RIVERRUN_CUDA)),ON,$(RIVERRUN_CUDA))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
PHONY_TESTS := test test-full test-asan test-aarch64 test-cuda test-emulated
.PHONY: help run $(PHONY_TESTS) check lint stub stub-check docs docs-check support support-cuda emulated bench build clean FORCE

help:
	@echo "make run         install, and continue a prompt with the bundled model"
	@echo "make test        install, and run the test suite (ARGS='tests/ops -k rope')"
	@echo "make test-full   the same with long-running cases and published models of 250 and 100 MB"
	@echo "make test-asan   every case of every op under sanitizers"
	@echo "make test-aarch64  the same, compiled for aarch64 and emulated, products at each level (ARGS='mul_mat rope')"
	@echo "make test-cuda   install with CUDA kernels, and run the tests that need a card"
	@echo "make test-emulated  the same tests with the kernels emulated on the processor"
	@echo "make check       formatting, lints, types, generated files, fast tests"
	@echo "make bench       tokens per second of the bundled model (ARGS='--json')"
	@echo "make build       compile in place for working on the code: PYTHONPATH=.dev"
	@echo "make stub docs   rewrite the generated files"
	@echo "make support     write anew what backends take and what models were compared with"
	@echo "make support-cuda  the same of the CUDA kernels, which are emulated"
	@echo "make clean       remove what was built; the virtual environment stays"

run: $(VENV)/.installed
	$(BIN)/riverrun run -p "def quicksort(arr):" -n 64 --temp 0 $(ARGS)

test: $(VENV)/.installed $(VENV)/.testing
	$(BIN)/pytest $(PARALLEL) -m "not full" $(ARGS) </dev/null

test-full: $(VENV)/.installed $(VENV)/.testing-full
	$(BIN)/pytest $(PARALLEL) $(ARGS) </dev/null

# Every case of every op under the address and undefined-behaviour sanitizers, at every level, and
# products of rows with NaN and infinity for every type.
test-asan: $(VENV)/.installed $(VENV)/.testing
	tools/dev_tree.sh build/asan/tree
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/asan -G Ninja -DRIVERRUN_SANITIZE=ON -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/asan
	ln -sfn $(CURDIR)/build/asan/_cpu*.so build/asan/tree/riverrun/
	for isa in base avx2 avxvnni avx512 avx512vnni; do \
	  ( export RIVERRUN_ISA=$$isa ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=build/asan/tree \
	    LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)"; \
	    $(BIN)/python tests/run_cases.py && \
	    $(BIN)/pytest -q tests/backends/test_mul_mat_cpu.py -k finite </dev/null ) || exit 1; \
	done

# Every case of every op with the kernels compiled for another processor, under qemu; products at
# each level of that.
test-aarch64: $(VENV)/.installed $(VENV)/.testing
	VENV=$(CURDIR)/$(VENV) tools/test_aarch64.sh $(ARGS)

# Kernels for the cards that the CUDA toolkit finds here ("native"), or for CUDA_ARCHITECTURES.
CUDA_ARCHITECTURES ?= native
test-cuda: $(VENV)/.ready
	$(BIN)/pip install -q --no-build-isolation ".[test]" -C cmake.define.RIVERRUN_CUDA=ON \
	  -C cmake.define.CMAKE_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)
	touch $(VENV)/.installed
	$(BIN)/pytest $(ARGS) tests/cuda </dev/null

# The emulated module is built apart, for it must not become what is installed.
emulated: $(VENV)/.installed $(VENV)/.testing
	tools/dev_tree.sh build/emulate/tree
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/emulate -G Ninja -DRIVERRUN_CUDA=EMULATE -DRIVERRUN_KERNELS=none -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/emulate --target _cuda
	ln -sfn $(CURDIR)/build/emulate/_cuda*.so build/emulate/tree/riverrun/
	ln -sfn "$$(cd / && $(CURDIR)/$(BIN)/python -c 'import riverrun._cpu as m; print(m.__file__)')" build/emulate/tree/riverrun/

test-emulated: emulated
	PYTHONPATH=build/emulate/tree $(BIN)/pytest $(PARALLEL) -m "not full" $(ARGS) tests/emulate tests/cuda </dev/null

check: lint stub-check docs-check
	$(BIN)/pytest -m "not full" tests/house tests/unit tests/ops </dev/null

lint: $(VENV)/.installed $(VENV)/.testing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	tools/dev_tree.sh
	MYPYPATH=.dev $(BIN)/mypy -p riverrun

stub stub-check docs docs-check: MODULE = $(if $(findstring stub,$@),gen_stub,gen_docs)
stub docs: $(VENV)/.installed
	$(BIN)/python -m riverrun.tools.$(MODULE)

stub-check docs-check: $(VENV)/.installed
	$(BIN)/python -m riverrun.tools.$(MODULE) --check

# What tests hold against later versions, and docs/support.md shows: how many cases of each op the
# backends take (tests/ops fails when a count falls), and what models were compared with.
support: $(VENV)/.installed $(VENV)/.testing
	$(BIN)/riverrun test-ops --support --write tests/ops/support.json
	$(BIN)/python tests/oracles.py

# The same of the CUDA kernels, which are asked where they are emulated.
support-cuda: emulated
	PYTHONPATH=build/emulate/tree $(BIN)/python -m riverrun.tools.gen_cuda_support

bench: $(VENV)/.installed
	$(BIN)/riverrun bench $(ARGS)

build: $(VENV)/.installed
	tools/dev_tree.sh
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/dev -G Ninja -DRIVERRUN_CUDA=$(CUDA) -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/dev
	ln -sfn $(CURDIR)/build/dev/_c*.so .dev/riverrun/

clean:
	rm -rf build dist .dev .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f $(VENV)/.installed

# Build requirements stay installed, because an environment of its own for each build would move the
# compiler's paths and so compile everything again. cmake and ninja only where the system has none.
$(VENV)/.ready: | $(BIN)/python
	$(BIN)/pip install -q "scikit-build-core>=0.10" "pybind11>=2.13"
	$(BIN)/python -c "from scikit_build_core.build import get_requires_for_build_wheel as r; print(*r())" \
	  | xargs $(BIN)/pip install -q pybind11
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Holds the names of the sources, for files that come or go leave no newer file behind.
build/sources: FORCE
	@mkdir -p build
	@printf '%s\n' $(SOURCES) >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(VENV)/.installed: $(VENV)/.ready build/sources $(SOURCES) pyproject.toml CMakeLists.txt
	@echo "installing riverrun (a first build takes some minutes)"
	$(BIN)/pip install -q --no-build-isolation .
	touch $@

# Extras of what is installed already.
$(VENV)/.testing: pyproject.toml | $(VENV)/.installed
	$(BIN)/pip install -q "riverrun[test]"
	touch $@

$(VENV)/.testing-full: pyproject.toml | $(VENV)/.installed
	$(BIN)/pip install -q "riverrun[test,gemma,smollm2]"
	touch $@
