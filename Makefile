# Builds, tests and shows tfcollective. `make help` lists the targets. Everything lands in .venv/, build/ and dist/.

PYTHON ?= $(shell tools/find_python.sh 3.10 3.13)
# TensorFlow 2.15.1 has no wheels for Python 3.12 and later.
PYTHON_TF215 ?= $(shell tools/find_python.sh 3.10 3.11 $(PYTHON) python3.11 python3.10 python3)
# Each is looked for once.
PYTHON := $(PYTHON)
PYTHON_TF215 := $(PYTHON_TF215)
# Every Python that is here: looked for where it is used.
PYTHONS ?= $(foreach minor,10 11 12 13,$(shell tools/find_python.sh 3.$(minor) 3.$(minor) python3.$(minor)))
JOBS ?= $(shell nproc)

VENV := $(CURDIR)/.venv
TOOLS := $(VENV)/tools/bin
NATIVE := build/native
TENSORFLOWS := tf221 $(if $(PYTHON_TF215),tf215)
# What runs from the tools environment (cmake, ninja) must find its companions there.
WITH_TOOLS := PATH="$(TOOLS):$$PATH"
INSTALL := -m pip install --quiet --disable-pip-version-check --no-deps
PYTEST := tools/pytest.sh
SOURCES := $(shell find native tfcollective launchers benchmarks -type f -regex '.*\(\.\(cc\|c\|h\|map\|py\|typed\)\|/CMakeLists.txt\)') \
  CMakeLists.txt CMakePresets.json pyproject.toml benchmarks/pyproject.toml setup.py README.md LICENSE NOTICE MANIFEST.in benchmarks/LICENSE benchmarks/README.md
say = @printf '\n\033[1m== %s\033[0m\n' "$(1)"

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DELETE_ON_ERROR:
.SECONDARY:

help:            ## list the targets
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "  make %-20s %s\n", $$1, $$2}'

demo: .venv/tf221.installed  ## set up everything and train the digits example on 2 processes
	$(call say,training examples/keras_digits.py on 2 processes)
	@mkdir -p build && cd build && $(VENV)/tf221/bin/tfcollective run -np 2 --env TF_CPP_MIN_LOG_LEVEL=2 $(VENV)/tf221/bin/python $(CURDIR)/examples/keras_digits.py \
	  --model-dir $(CURDIR)/models

check: .venv/tools.linked  ## before each commit: lint, native tests, unit tests of the tree without TensorFlow
	@$(MAKE) --no-print-directory --jobs $(JOBS) --output-sync=target $(filter-out lint/site,$(LINTERS))
	@$(MAKE) --no-print-directory test-native
	@$(WITH_TOOLS) cmake --install $(NATIVE) --component wheel --prefix . >build/install.log
	@$(PYTEST) tools -q $(AT_ONCE) -m "not tensorflow and not long and not elastic" tests/unit

test:            ## lint, native tests, unit tests under TensorFlow 2.21; `make test-python` and .ci/run have the rest
	@$(MAKE) --no-print-directory --jobs $(JOBS) .venv/tools.made .venv/tf221.made
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test-native
	@$(MAKE) --no-print-directory test-unit
	$(call say,all tests passed)

test-all:        ## what .ci/run and `make test` leave out: long tests, sanitizers, other Pythons, hosts, SLURM, Kubernetes, Spark, YARN; hours
	@tools/test_all.sh

# ---- environments: what each holds, as arguments of tools/make_venv.sh ----------------------------------------------

HOLDS_tools := build run test dev
HOLDS_release := build release
# What belongs to no TensorFlow is tested once.
HOLDS_tf221 := run test mlflow web kubernetes -- tensorflow-cpu==2.21.0
HOLDS_tf215 := run test -- tensorflow-cpu==2.15.1
# Where pip finds no build of torch for CPUs only, the one for GPUs: some gigabytes.
HOLDS_foreign := run test -- 'jax[cpu]' 'keras>=3' torch
HOLDS_yarn := yarn hdfs webhdfs s3 -- 'moto[server]'
HOLDS_yarn-tf221 := --on .venv/tf221 $(HOLDS_yarn)
HOLDS_yarn-tf215 := --on .venv/tf215 $(HOLDS_yarn)
HOLDS_spark-tf221 := --on .venv/tf221 spark
# TensorFlow 2.15 cannot use NumPy 2, which the newest pandas and pyarrow need.
HOLDS_spark-tf215 := --on .venv/tf215 spark -- 'numpy<2' 'pandas<3' 'pyarrow<22'
$(foreach over,yarn spark,$(foreach under,tf221 tf215,$(eval .venv/$(over)-$(under).made: .venv/$(under).made)))
PYTHON_tf215 = $(PYTHON_TF215)
PYTHON_yarn-tf215 = $(PYTHON_TF215)
PYTHON_spark-tf215 = $(PYTHON_TF215)

.venv/%.made: pyproject.toml tools/requirements.py tools/make_venv.sh
	@tools/make_venv.sh "$(or $(PYTHON_$*),$(if $(filter alone-%,$*),$(filter %$(*:alone-%=%),$(PYTHONS))),$(PYTHON))" .venv/$* $(or $(HOLDS_$*),run test)
	@touch $@

# Under pip the compiler would not show its progress.
define libraries
	@$(WITH_TOOLS) cmake --preset release -DTFC_BENCHMARKS=ON
	@$(WITH_TOOLS) cmake --build $(NATIVE) --target wheel_libraries tfc_simulator --parallel $(JOBS)
endef

dist/wheel.made: .venv/tools.made $(SOURCES)
	$(call say,wheels)
	@rm -rf dist/*.whl build/lib build/bdist.* benchmarks/build
	$(libraries)
	@$(WITH_TOOLS) $(TOOLS)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist . ./benchmarks
	@ls dist/*.whl
	@touch $@

wheel: dist/wheel.made  ## build the wheels of tfcollective and of its benchmarks into dist/

# The same wheels go into every environment.
.venv/%.installed: .venv/%.made dist/wheel.made
	@$(VENV)/$*/bin/python $(INSTALL) --force-reinstall dist/*.whl
	@$(WITH_TOOLS) cmake --install $(NATIVE) --component simulator \
	  --prefix $$($(VENV)/$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	@touch $@

# The source tree instead, with its shared objects in place.
.venv/%.linked: .venv/%.made .venv/tools.made
	$(libraries)
	@$(VENV)/$*/bin/python -m pip install --quiet --disable-pip-version-check $$($(TOOLS)/python tools/requirements.py build)
	@$(WITH_TOOLS) $(VENV)/$*/bin/python $(INSTALL) --no-build-isolation -e . -e ./benchmarks
	@$(WITH_TOOLS) cmake --install $(NATIVE) --component simulator --prefix benchmarks
	@rm -f .venv/$*.installed
	@touch $@

# The folder of tfcollective_bench's parent: of a source tree or of an environment.
SIMULATOR_INTO ?= $(CURDIR)/benchmarks
simulator: .venv/tools.made  ## build the library of `tfcollective bench simulate` into SIMULATOR_INTO (benchmarks/)
	$(libraries)
	@$(WITH_TOOLS) cmake --install $(NATIVE) --component simulator --prefix $(SIMULATOR_INTO)

develop:         ## build the shared objects in place and link the source tree into .venv/tf221
	@rm -f .venv/tf221.linked && $(MAKE) --no-print-directory .venv/tf221.linked

# ---- lint -----------------------------------------------------------------------------------------------------------

CXX_FILES = $$(git ls-files --cached --others --exclude-standard '*.cc' '*.h' '*.c')
# One of them runs long on one core while the others run on the rest.
LINTERS := lint/types lint/contracts lint/style lint/site lint/native
.PHONY: $(LINTERS)

lint: .venv/tools.made  ## ruff, mypy, import-linter, layers and thread safety of the native code, clang-format, the documentation site
	$(call say,lint)
	@$(MAKE) --no-print-directory --jobs $(JOBS) --output-sync=target $(LINTERS)

lint/types:
	@$(TOOLS)/mypy

lint/contracts:
	@$(TOOLS)/lint-imports
	@PYTHONPATH=launchers $(TOOLS)/lint-imports --config launchers/importlinter.ini
	@PYTHONPATH=benchmarks $(TOOLS)/lint-imports --config benchmarks/importlinter.ini

lint/style:
	@$(TOOLS)/ruff check .
	@$(TOOLS)/ruff format --check .

# Strict: a broken link, or a name that the Python reference cannot find, is an error. So are Sphinx's roles, and the \| of
# a table in code, which GitHub shows without the backslash.
lint/site:
	@mkdir -p build
	@$(WITH_TOOLS) $(TOOLS)/zensical build --strict --clean >build/site.log 2>&1 || { cat build/site.log; exit 1; }
	@! grep -rnE --include='*.html' ':(func|class|meth|mod):|<code>[^<]*\\\|' build/site || { echo "error: the site shows this markup as it is written"; exit 1; }

lint/native:
	@$(TOOLS)/python tools/check_layers.py
	@$(TOOLS)/python tools/check_thread_safety.py
	@$(TOOLS)/clang-format --dry-run --Werror $(CXX_FILES)

docs: .venv/tools.made lint/site  ## build the documentation site into build/site
	@echo "open build/site/index.html, or: python3 -m http.server --directory build/site"

format: .venv/tools.made  ## let ruff and clang-format write the files
	@$(TOOLS)/ruff check --fix-only --quiet .
	@$(TOOLS)/ruff format .
	@$(TOOLS)/clang-format -i $(CXX_FILES)

# ---- native tests: tools/test_native.sh FOLDER PRESET CMAKE-OPTION... [-- CTEST-OPTION...] ---------------------------------

test-native: .venv/tools.made  ## native tests
	@tools/test_native.sh $(NATIVE) dev

test-native-asan: .venv/tools.made  ## native tests under the address and undefined-behaviour sanitizers
	@tools/test_native.sh build/asan asan

test-native-tsan: .venv/tools.made  ## native tests under the thread sanitizer
	@tools/test_native.sh build/tsan tsan

test-native-aarch64: .venv/tools.made .venv/release.made  ## native tests for aarch64, emulated by qemu-aarch64-static; slow
	@tools/release/test_aarch64.sh

# Later than every limit for hosts that are gone, and more than connections hold. make test-late LATE="60 512"
LATE ?= 15 128
test-late: .venv/tools.made  ## a rank that comes 15 s late to 128 MiB (LATE="SECONDS MIB")
	@TFC_TEST_LATE_SECONDS=$(word 1,$(LATE)) TFC_TEST_LATE_MIB=$(word 2,$(LATE)) tools/test_native.sh $(NATIVE) dev -- -R 'LateTest|CutOff'

bench-native: .venv/tools.made  ## build and run the native benchmarks
	@$(WITH_TOOLS) cmake --preset release -DTFC_BENCHMARKS=ON
	@$(WITH_TOOLS) cmake --build $(NATIVE) --parallel $(JOBS)
	@for benchmark in $(NATIVE)/bench_*; do [ ! -x $$benchmark ] || { echo "== $$benchmark"; $$benchmark || exit 1; }; done

include tools/suites.mk tools/release/release.mk

clean:           ## remove what was built; the environments stay
	rm -rf build benchmarks/build dist models *.egg-info benchmarks/*.egg-info tfcollective/_runtime/native_library/*.so tfcollective/_runtime/native_library/tf_gpu benchmarks/tfcollective_bench/simulate/*.so .mypy_cache .ruff_cache .import_linter_cache .venv/*.{installed,linked}

distclean: clean ## remove the environments, too
	rm -rf .venv

.PHONY: $(shell sed -nE 's/^([a-z][a-z0-9-]*):([^=].*)?$$/\1/p' $(MAKEFILE_LIST))
