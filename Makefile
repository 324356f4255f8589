# Every target sets itself up: the environment .venv is built when it is missing or its pins changed.
#
#   make demo    the whole idea on real data         make env     only build .venv
#   make test    the suite, pure and compiled        make build   compiled kernel in place
#   make check   format, lint, types, contracts      make clean   take it away again
#   make bench   measurements                        make fmt     format the code
#   make sim     clusters from SEEDS=1000 seeds      make mutations   faults for tests to notice
#   make laws    merge laws, 10,000 examples each   make wheel   build/wheel/*.whl for this platform
#   make demo-grid   two venues: one runs a job on Spark, the other asks for it and verifies the result

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
CODE := src tests bench examples setup.py
CODE := $(wildcard $(CODE))
SOURCES := $(shell find src -name '*.py' -o -path 'src/keccak/*' -o -path 'src/signatures/*' -o -path 'src/intentions/*' -o -path 'src/checksums/*' 2>/dev/null)
PYTEST := $(BIN)/python -m pytest
PYTEST_ARGS ?=
# Processes that share the tests out, a file at a time; 0: this one runs them all.
WORKERS ?= 2
# Long files come first, as tests/conftest.py orders them: at the end no process waits for another.
SUITE = $(PYTEST) --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder
# What `make test` leaves out of the pure run, since the compiled one has it.
PURE_ARGS ?=
DEMO_ARGS ?=
GRID_ARGS ?=
BENCH_ARGS ?=
SEEDS ?= 1000
SIM_ARGS ?=
MUTATIONS_ARGS ?=
LAWS ?= tests/laws

# A C compiler that finds the headers of this Python. Asked when needed, once the environment is there.
HAS_COMPILER = printf '\#include <Python.h>\n' | $${CC:-cc} -x c -fsyntax-only \
	-I"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')" - 2>/dev/null

.PHONY: env demo demo-grid test test-pure test-compiled check build wheel clean bench sim laws mutations fmt

env: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "make: Python 3.11 or later is needed as $(PYTHON); name another with: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "make: $(PYTHON) cannot make virtual environments; install that part with: apt-get install python3-venv" >&2; exit 1; }
	@echo "make: building $(VENV) (a few minutes the first time: Spark is large)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --upgrade --constraint constraints.txt pip setuptools wheel
	@DATALATTICE_COMPILE=0 $(PIP) install --quiet --constraint constraints.txt --no-build-isolation --editable '.[all]'
	@touch $@

# The compiled kernel where `make test` or `make bench` left one of these very sources, else pure Python.
PATH_THERE = $$($(MAKE) --no-print-directory --question build/compiled/.ready 2>/dev/null \
	&& echo "$$PWD/build/compiled" || echo "$$PWD/src")

demo: $(READY)
	@PYTHONPATH="$(PATH_THERE):examples" $(BIN)/python -m flights $(DEMO_ARGS)

demo-grid: $(READY)
	@PYTHONPATH="$(PATH_THERE)" $(BIN)/python examples/fleet.py $(GRID_ARGS)

# --- tests ------------------------------------------------------------------------------------

# Both modes run everything about the kernel and what stands on it. Tests marked `once` are about whole
# programs (Spark, the demo, kill -9, the command line as processes) or about text: they run compiled
# where that can be done, else pure. `make test-pure` and `make test-compiled` leave nothing out.
# The kernel is compiled beside the pure run: most of that is one process at work.
test: $(READY)
	@if $(HAS_COMPILER); then \
		$(MAKE) --no-print-directory --jobs=2 test-pure build/compiled/.ready PURE_ARGS='-m "not once"' \
		&& $(MAKE) --no-print-directory test-compiled \
		&& echo "make test: passed in both modes, pure and compiled"; \
	else \
		$(MAKE) --no-print-directory test-pure \
		&& echo "make test: passed in pure mode; compiled mode not run, there is no C compiler with Python headers"; \
	fi

# After `make build` the compiled kernel lies in src and would be imported: then the tests get a copy without it.
test-pure: $(READY)
	@echo "make test: pure mode"
	@if [ -n "$$(find src -name '*.so')" ]; then \
		rm -rf build/pure && mkdir -p build/pure && cp -R src/datalattice build/pure/ \
		&& find build/pure -name '*.so' -delete && path="$$PWD/build/pure"; \
	else \
		path="$$PWD/src"; \
	fi; \
	DATALATTICE_EXPECT_COMPILED=0 PYTHONPATH="$$path" $(SUITE) $(PURE_ARGS) $(PYTEST_ARGS)

test-compiled: build/compiled/.ready
	@echo "make test: compiled mode"
	@DATALATTICE_EXPECT_COMPILED=1 PYTHONPATH="$$PWD/build/compiled" $(SUITE) $(PYTEST_ARGS)

build/compiled/.ready: $(SOURCES) setup.py $(READY)
	@echo "make: compiling the kernel into build/compiled"
	@rm -rf build/compiled
	@mkdir -p build
	@DATALATTICE_COMPILE=1 $(BIN)/python setup.py --quiet build --build-lib build/compiled --build-temp build/temp \
		>build/compile.log 2>&1 || { cat build/compile.log >&2; exit 1; }
	@touch $@

# --- quality ----------------------------------------------------------------------------------

check: $(READY)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/mypy $(CODE)
	@$(BIN)/lint-imports
	@$(PYTEST) --quiet tests/test_tidy.py tests/test_exports.py

fmt: $(READY)
	@$(BIN)/ruff format $(CODE)
	@$(BIN)/ruff check --fix-only $(CODE)

# --- the compiled kernel, on and off ------------------------------------------------------------

build: $(READY)
	@$(HAS_COMPILER) || { echo "make build: no C compiler with Python headers; install them with: apt-get install gcc python3-dev" >&2; exit 1; }
	@mkdir -p build
	@DATALATTICE_COMPILE=1 $(BIN)/python setup.py --quiet build_ext --inplace --build-temp build/temp \
		>build/compile.log 2>&1 || { cat build/compile.log >&2; exit 1; }
	@echo "make build: the compiled kernel is on; make clean takes it away"

wheel: build/compiled/.ready
	@$(BIN)/python tests/scripts/wheel.py build/compiled build/wheel

clean:
	@find src -name '*.so' -delete
	@rm -rf build
	@echo "make clean: the compiled kernel is off"

bench: $(READY)
	@if $(HAS_COMPILER); then \
		$(MAKE) --no-print-directory build/compiled/.ready \
		&& PYTHONPATH="$$PWD/build/compiled" $(BIN)/python bench/run.py $(BENCH_ARGS); \
	else \
		echo "make bench: pure mode, there is no C compiler with Python headers"; \
		$(BIN)/python bench/run.py $(BENCH_ARGS); \
	fi

sim: $(READY)
	@path=src; \
	if $(HAS_COMPILER); then $(MAKE) --no-print-directory build/compiled/.ready && path=build/compiled || exit 1; fi; \
	PYTHONPATH="$$PWD/$$path" $(BIN)/python -m datalattice.testing.sim --seeds $(SEEDS) $(SIM_ARGS)

mutations: $(READY)
	@$(BIN)/python tests/scripts/mutations.py $(MUTATIONS_ARGS)

# Hours in pure mode; one part of it with, for example, make laws LAWS=tests/laws/test_kv_laws.py
laws: $(READY)
	@path=src; \
	if $(HAS_COMPILER); then $(MAKE) --no-print-directory build/compiled/.ready && path=build/compiled || exit 1; fi; \
	DATALATTICE_PROFILE=long DATALATTICE_EXCHANGES=2000 PYTHONPATH="$$PWD/$$path" $(PYTEST) -o timeout=7200 $(PYTEST_ARGS) $(LAWS)
