# Builds, tests and shows tfcollective. `make help` lists the targets. Everything lands in .venv/, build/ and dist/.

PYTHON ?= $(shell tools/find_python.sh 3.10 3.13)
# TensorFlow 2.15.1 has no wheels for Python 3.12 and later.
PYTHON_TF215 ?= $(shell tools/find_python.sh 3.10 3.11 $(PYTHON) python3.11 python3.10 python3)
JOBS ?= $(shell nproc)
SOAK ?= 50

VENV := $(CURDIR)/.venv
TOOLS := $(VENV)/tools
NATIVE := build/native
SOURCES := $(shell find native tfcollective launchers benchmarks -type f \( -name '*.cc' -o -name '*.c' -o -name '*.h' -o -name '*.map' \
             -o -name '*.py' -o -name py.typed \) 2>/dev/null) CMakeLists.txt pyproject.toml benchmarks/pyproject.toml setup.py README.md LICENSE
TENSORFLOW_tf221 := tensorflow-cpu==2.21.0
TENSORFLOW_tf215 := tensorflow-cpu==2.15.1
# What belongs to no TensorFlow is tested once.
EXTRAS_tf221 := mlflow
PYTHON_tf221 = $(PYTHON)
PYTHON_tf215 = $(PYTHON_TF215)
# What runs from the tools environment (cmake, ninja) must find its companions there.
WITH_TOOLS := PATH="$(TOOLS)/bin:$$PATH"
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
say = @printf '\n\033[1m== %s\033[0m\n' "$(1)"

# A list of requirements that cannot be made must end the installation.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: help demo test lint format wheel wheel-release develop test-native test-native-asan test-native-tsan test-python test-tf221 test-tf215 \
  test-long test-late test-elastic test-second-device test-pythons test-hosts test-engines test-yarn test-soak bench bench-quick chaos bench-native googletest clean distclean

help:            ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/:/' | awk -F: '{printf "  make %-18s %s\n", $$1, $$2}'

demo: .venv/tf221.installed  ## set up everything and train the digits example on 2 processes
	$(call say,training examples/keras_digits.py on 2 processes)
	@mkdir -p build && cd build && $(VENV)/tf221/bin/tfcollective run -np 2 --env TF_CPP_MIN_LOG_LEVEL=2 $(VENV)/tf221/bin/python $(CURDIR)/examples/keras_digits.py \
	  --model-dir $(CURDIR)/models

test:            ## lint, native tests and Python tests under both TensorFlow versions
	@$(MAKE) --no-print-directory --jobs $(JOBS) $(ENVIRONMENTS)
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test-native
	@$(MAKE) --no-print-directory test-python
	$(call say,all tests passed)

# ---- environments ---------------------------------------------------------------------------------------------------

ENVIRONMENTS := .venv/tools.made .venv/tf221.made $(if $(PYTHON_TF215),.venv/tf215.made)

.venv/tools.made: pyproject.toml tools/requirements.py tools/make_venv.sh
	$(call say,environment .venv/tools: build and lint tools)
	@test -n "$(PYTHON)" || { echo "error: tfcollective needs Python 3.10 to 3.13, and none was found (set PYTHON=...)" >&2; exit 1; }
	@tools/make_venv.sh "$(PYTHON)" $(TOOLS)
	@$(TOOLS)/bin/python tools/requirements.py build run dev | $(TOOLS)/bin/python $(PIP_INSTALL) -r /dev/stdin
	@touch $@

.venv/%.made: pyproject.toml tools/requirements.py tools/make_venv.sh
	$(call say,environment .venv/$*: $(TENSORFLOW_$*))
	@test -n "$(PYTHON_$*)" || { echo "error: no Python for $(TENSORFLOW_$*) was found" >&2; exit 1; }
	@tools/make_venv.sh "$(PYTHON_$*)" $(VENV)/$*
	@$(VENV)/$*/bin/python tools/requirements.py run test $(EXTRAS_$*) | \
	  $(VENV)/$*/bin/python $(PIP_INSTALL) -r /dev/stdin "$(TENSORFLOW_$*)"
	@touch $@

dist/wheel.made: .venv/tools.made $(SOURCES)
	$(call say,wheels)
	@rm -rf dist/*.whl build/lib build/bdist.* benchmarks/build
	@$(WITH_TOOLS) $(TOOLS)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  --wheel-dir dist . ./benchmarks
	@ls dist/*.whl
	@touch $@

# The same wheels go into every environment.
.venv/%.installed: .venv/%.made dist/wheel.made
	@$(VENV)/$*/bin/python $(PIP_INSTALL) --force-reinstall --no-deps dist/*.whl
	@touch $@

wheel: dist/wheel.made  ## build the wheels of tfcollective and of its benchmarks into dist/

# TensorFlow itself is enough for its headers and symbols: what it needs to run is left away.
RELEASE := build/release

wheel-release: dist/wheel.made  ## the wheel with the GPU kernels of both TensorFlow versions, into dist/release/
	@rm -rf $(RELEASE) dist/release
	@$(MAKE) --no-print-directory $(TENSORFLOWS:%=release-kernels/%)
	$(call say,wheel with GPU kernels)
	@TFC_TF_GPU_KERNELS=$(CURDIR)/$(RELEASE)/kernels $(WITH_TOOLS) $(TOOLS)/bin/python -m pip wheel --quiet \
	  --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist/release .
	@ls dist/release/*.whl

TENSORFLOWS := tf221 $(if $(PYTHON_TF215),tf215)
.PHONY: $(TENSORFLOWS:%=release-kernels/%)
$(TENSORFLOWS:%=release-kernels/%): release-kernels/%:
	$(call say,GPU kernels for $(TENSORFLOW_$*))
	@tools/make_venv.sh "$(PYTHON_$*)" $(RELEASE)/$*
	@$(RELEASE)/$*/bin/python $(PIP_INSTALL) --no-deps "$(TENSORFLOW_$*)"
	@PYTHONPATH=$(CURDIR) $(RELEASE)/$*/bin/python tools/build_tf_gpu.py $(NATIVE)/libtfcollective.so $(RELEASE)/kernels
	@rm -rf $(RELEASE)/$*

develop: .venv/tf221.made .venv/tools.made  ## build the shared objects in place and link the source tree into .venv/tf221
	@$(WITH_TOOLS) cmake -S . -B $(NATIVE) -G Ninja
	@$(WITH_TOOLS) cmake --build $(NATIVE) --target wheel_libraries --parallel $(JOBS)
	@$(WITH_TOOLS) cmake --install $(NATIVE) --component wheel --prefix .
	@$(VENV)/tf221/bin/python $(PIP_INSTALL) $$($(TOOLS)/bin/python tools/requirements.py build)
	@$(WITH_TOOLS) $(VENV)/tf221/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation -e . -e ./benchmarks
	@rm -f .venv/tf221.installed

# ---- lint -----------------------------------------------------------------------------------------------------------

CXX_FILES = $$(git ls-files --cached --others --exclude-standard '*.cc' '*.h' '*.c')

# One of them runs long on one core while the others run on the rest.
LINTERS := types contracts style native

lint: .venv/tools.made  ## ruff, mypy, import-linter, layers and thread safety of the native code, clang-format
	$(call say,lint)
	@$(MAKE) --no-print-directory --jobs $(JOBS) --output-sync=target $(LINTERS:%=lint/%)

.PHONY: $(LINTERS:%=lint/%)
lint/types:
	@$(TOOLS)/bin/mypy

lint/contracts:
	@$(TOOLS)/bin/lint-imports
	@PYTHONPATH=launchers $(TOOLS)/bin/lint-imports --config launchers/importlinter.ini
	@PYTHONPATH=benchmarks $(TOOLS)/bin/lint-imports --config benchmarks/importlinter.ini

lint/style:
	@$(TOOLS)/bin/ruff check .
	@$(TOOLS)/bin/ruff format --check .

lint/native:
	@$(TOOLS)/bin/python tools/check_layers.py
	@$(TOOLS)/bin/python tools/check_thread_safety.py
	@$(TOOLS)/bin/clang-format --dry-run --Werror $(CXX_FILES)

format: .venv/tools.made  ## let ruff and clang-format write the files
	@$(TOOLS)/bin/ruff check --fix-only --quiet .
	@$(TOOLS)/bin/ruff format .
	@$(TOOLS)/bin/clang-format -i $(CXX_FILES)

# ---- native ---------------------------------------------------------------------------------------------------------

googletest:
	@tools/ensure_googletest.sh

# $(1): build folder, $(2): CMake options, $(3): ctest options. Every other test waits for a deadline: two a core.
define native_tests
	@$(WITH_TOOLS) cmake -S . -B $(1) -G Ninja -DTFC_TESTS=ON $(2) >build/$(notdir $(1)).log || { cat build/$(notdir $(1)).log; exit 1; }
	@$(WITH_TOOLS) cmake --build $(1) --parallel $(JOBS)
	@$(WITH_TOOLS) ctest --test-dir $(1) --output-on-failure --no-tests=error --progress --parallel $(shell expr 2 '*' $(JOBS)) $(3) </dev/null
endef

test-native: .venv/tools.made googletest  ## native tests
	$(call say,native tests)
	@mkdir -p build
	$(call native_tests,$(NATIVE),,)

test-native-asan: .venv/tools.made googletest  ## native tests under the address and undefined-behaviour sanitizers
	$(call say,native tests with the address sanitizer)
	@mkdir -p build
	$(call native_tests,build/asan,-DTFC_SANITIZE=address,)

test-native-tsan: .venv/tools.made googletest  ## native tests under the thread sanitizer
	$(call say,native tests with the thread sanitizer)
	@mkdir -p build
	$(call native_tests,build/tsan,-DTFC_SANITIZE=thread,)

bench-native: .venv/tools.made  ## build and run the native benchmarks
	@$(WITH_TOOLS) cmake -S . -B $(NATIVE) -G Ninja -DTFC_BENCHMARKS=ON
	@$(WITH_TOOLS) cmake --build $(NATIVE) --parallel $(JOBS)
	@for benchmark in $(NATIVE)/bench_*; do [ ! -x $$benchmark ] || { echo "== $$benchmark"; $$benchmark || exit 1; }; done

# ---- Python ---------------------------------------------------------------------------------------------------------

# pytest runs in a folder of its own, so that the installed package is tested and not the source tree.
# $(1): environment, $(2): pytest options
define python_tests
	@mkdir -p build/tests-$(1)
	@cd build/tests-$(1) && $(VENV)/$(1)/bin/pytest -c $(CURDIR)/pyproject.toml --rootdir $(CURDIR) -o cache_dir=$(CURDIR)/build/tests-$(1)/cache \
	  $(2) </dev/null
endef

# These tests do not touch TensorFlow, or only the documentation and the benchmarks: once is enough.
ROOMS_WITHOUT_TENSORFLOW := agent bench cli control docs failures identity launch launchers private_directory settings \
  task_specs tasks timeline topology
ONCE := --ignore $(CURDIR)/tests/multiprocess --ignore $(CURDIR)/tests/gpu --ignore-glob '$(CURDIR)/tests/e2e/test_bench*.py' \
  --ignore $(CURDIR)/tests/e2e/test_docs.py $(ROOMS_WITHOUT_TENSORFLOW:%=--ignore $(CURDIR)/tests/unit/%)

# Many tests mostly wait, for processes or for deadlines: four files at a time even on two cores, in the order of
# tests/conftest.py.
AT_ONCE := --numprocesses 4 --dist loadfile --no-loadscope-reorder

test-python: test-tf221 test-tf215  ## Python tests under both TensorFlow versions

test-tf221: .venv/tf221.installed
	$(call say,Python tests with $(TENSORFLOW_tf221))
	$(call python_tests,tf221,$(AT_ONCE) $(CURDIR)/tests $(PYTEST_ARGS))

ifneq ($(PYTHON_TF215),)
test-tf215: .venv/tf215.installed
	$(call say,Python tests with $(TENSORFLOW_tf215) and the same wheel)
	$(call python_tests,tf215,$(AT_ONCE) $(CURDIR)/tests $(ONCE) $(PYTEST_ARGS))
else
test-tf215:
	$(call say,skipped: $(TENSORFLOW_tf215) needs Python 3.10 or 3.11 and none was found)
endif

test-long: .venv/tf221.installed $(if $(PYTHON_TF215),.venv/tf215.installed)  ## longer tests of examples and benchmarks, under both TensorFlow versions
	@$(MAKE) --no-print-directory test-late
	$(call say,long tests)
	$(call python_tests,tf221,-n 2 --dist load -m long $(CURDIR)/tests $(PYTEST_ARGS))
	$(if $(PYTHON_TF215),$(call python_tests,tf215,-n 2 --dist load -m long \
	  $(addprefix $(CURDIR)/tests/,e2e/test_examples.py e2e/test_winequality.py keras tensorflow) $(PYTEST_ARGS)))

ELASTIC_WITH ?= tf221 $(if $(PYTHON_TF215),tf215)

test-elastic: $(ELASTIC_WITH:%=elastic/%)  ## faults of elastic jobs in all places (ELASTIC_WITH=tf221)

.PHONY: $(ELASTIC_WITH:%=elastic/%)
$(ELASTIC_WITH:%=elastic/%): elastic/%: .venv/%.installed
	$(call say,elastic jobs with $(TENSORFLOW_$*))
	$(call python_tests,$*,--numprocesses 3 --dist load -m elastic \
	  $(addprefix $(CURDIR)/tests/,keras tensorflow $(if $(filter tf221,$*),multiprocess e2e)) $(PYTEST_ARGS))

# Later than every limit for hosts that are gone, and more than connections hold. make test-late LATE="60 512"
LATE ?= 15 128

test-late: export TFC_TEST_LATE_SECONDS = $(word 1,$(LATE))
test-late: export TFC_TEST_LATE_MIB = $(word 2,$(LATE))
test-late: .venv/tools.made googletest  ## a rank that comes 15 s late to 128 MiB (LATE="SECONDS MIB")
	$(call say,a late rank)
	@mkdir -p build
	$(call native_tests,$(NATIVE),,-R 'LateTest|CutOff')

# A second logical device of the processor stands for a GPU; see tests/support/second_device.py.
PLACED := $(addprefix $(CURDIR)/tests/,keras tensorflow unit/keras unit/tensorflow)

PLACED_WITH ?= tf221 $(if $(PYTHON_TF215),tf215)
PLACED_ONES := -m "not hosts and not engines and not yarn and not elastic" $(PLACED) $(PYTEST_ARGS)

test-second-device: export TFC_TESTS_SECOND_DEVICE := 1
test-second-device: $(PLACED_WITH:%=second-device/%)  ## tests of keras/ and tensorflow/ with variables on a second device (PLACED_WITH=tf221)

.PHONY: $(PLACED_WITH:%=second-device/%)
$(PLACED_WITH:%=second-device/%): second-device/%: .venv/%.installed
	$(call say,tests with variables on a second device and $(TENSORFLOW_$*))
	$(call python_tests,$*,$(AT_ONCE) $(PLACED_ONES))

# Every other Python that is here, without TensorFlow: the same wheel, and what can be tested with it alone.
PYTHONS ?= $(foreach minor,10 11 12 13,$(shell tools/find_python.sh 3.$(minor) 3.$(minor) python3.$(minor)))
ALONE := tests/unit tests/multiprocess/test_launcher_api.py tests/multiprocess/test_launcher_run.py

test-pythons: $(PYTHONS:%=test-with/%)  ## tests that need no TensorFlow, under every Python that is here (PYTHONS=...)

test-with/%: dist/wheel.made
	$(call say,Python tests with $* and no TensorFlow)
	@tools/make_venv.sh $* $(VENV)/alone-$(notdir $*)
	@$(VENV)/alone-$(notdir $*)/bin/python tools/requirements.py run test | \
	  $(VENV)/alone-$(notdir $*)/bin/python $(PIP_INSTALL) -r /dev/stdin
	@$(VENV)/alone-$(notdir $*)/bin/python $(PIP_INSTALL) --force-reinstall --no-deps dist/*.whl
	$(call python_tests,alone-$(notdir $*),-q $(AT_ONCE) -m "not tensorflow" $(ALONE:%=$(CURDIR)/%))

test-engines: .venv/tf215.installed  ## jobs on Horovod's and MPI's engines (tools/baselines.sh makes them) and under srun (slurm-wlm, munge)
	$(call say,jobs on other engines)
	@mkdir -p build/tests-engines && cd build/tests-engines && $(VENV)/tf215/bin/pytest \
	    -c $(CURDIR)/pyproject.toml --rootdir $(CURDIR) -o cache_dir=$(CURDIR)/build/tests-engines/cache -m engines \
	    $(CURDIR)/tests/engines $(PYTEST_ARGS) </dev/null

test-hosts: .venv/tf221.installed  ## jobs over ssh on network namespaces as hosts; needs root and openssh-server
	$(call say,jobs on several hosts)
	@reason=$$(tools/hosts_possible.sh); if [ -n "$$reason" ]; then echo "skipped: $$reason"; else \
	  mkdir -p build/tests-hosts && cd build/tests-hosts && $(CURDIR)/tools/own_network.sh $(VENV)/tf221/bin/pytest \
	    -c $(CURDIR)/pyproject.toml --rootdir $(CURDIR) -o cache_dir=$(CURDIR)/build/tests-hosts/cache -m hosts \
	    $(CURDIR)/tests/hosts $(CURDIR)/tests/multiprocess/test_joined.py $(PYTEST_ARGS) </dev/null; fi

# What is in .venv/tf221 or .venv/tf215, and skein beside it.
.venv/yarn-%.made: .venv/%.made pyproject.toml tools/requirements.py tools/make_venv.sh
	$(call say,environment .venv/yarn-$*: that of $(TENSORFLOW_$*) with skein)
	@tools/make_venv.sh "$(PYTHON_$*)" $(VENV)/yarn-$*
	@folder='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	  $(VENV)/$*/bin/python -c "$$folder" >"$$($(VENV)/yarn-$*/bin/python -c "$$folder")/$*.pth"
	@$(VENV)/yarn-$*/bin/python tools/requirements.py yarn hdfs webhdfs s3 | \
	  $(VENV)/yarn-$*/bin/python $(PIP_INSTALL) -r /dev/stdin 'moto[server]'
	@touch $@

HADOOP := $(CURDIR)/tools/hadoop/hadoop
YARN_ENVIRONMENTS := tf221 $(if $(PYTHON_TF215),tf215)

# $(1): environment, $(2): tests
yarn_tests = mkdir -p build/tests-yarn && (cd build/tests-yarn && $(VENV)/yarn-$(1)/bin/python -m pytest -c $(CURDIR)/pyproject.toml \
  --rootdir $(CURDIR) -o cache_dir=$(CURDIR)/build/tests-yarn/cache -m yarn $(2:%=$(CURDIR)/tests/yarn%) $(PYTEST_ARGS) </dev/null)

test-yarn: $(YARN_ENVIRONMENTS:%=.venv/%.installed) $(YARN_ENVIRONMENTS:%=.venv/yarn-%.made)  ## jobs on a real YARN on this machine's loopback; needs Java 17 and Maven
	$(call say,jobs on YARN)
	@$(HADOOP) up || exit 1; trap '$(HADOOP) down' EXIT; eval "$$($(HADOOP) env)"; failed=0; \
	  { $(call yarn_tests,tf221,/); } || failed=1; \
	  $(if $(PYTHON_TF215),{ $(call yarn_tests,tf215,/test_wine.py); } || failed=1;) exit $$failed

test-gpu: .venv/tf221.installed  ## the matrix on a real GPU; says why where it cannot run
	$(call say,GPUs)
	$(call python_tests,tf221,-m gpu $(CURDIR)/tests/gpu $(PYTEST_ARGS))

test-soak: .venv/tf221.installed  ## the kill tests, SOAK (50) times
	$(call say,kill tests $(SOAK) times)
	$(call python_tests,tf221,-q -m kill --count $(SOAK) --repeat-scope session --numprocesses 4 --dist load --maxschedchunk 1 \
	  $(shell grep -rl 'mark\.kill' $(CURDIR)/tests --include='test_*.py'))

# ---- benchmarks -----------------------------------------------------------------------------------------------------

# What is missing of the others (tools/baselines.sh) is shown as not measured. BENCH_ARGS="--only allreduce --strict" ...
BENCH_OUT ?= $(CURDIR)/build/bench
bench_targets = @mkdir -p build && cd build && \
  $(VENV)/tf221/bin/tfcollective bench targets --baselines $(VENV) --out $(BENCH_OUT) $(1) $(BENCH_ARGS)

# What Keras 2 has to be compared with runs under TensorFlow 2.15.
BENCH_ENVIRONMENTS := .venv/tf221.installed $(if $(PYTHON_TF215),.venv/tf215.installed)

bench-quick: $(BENCH_ENVIRONMENTS)  ## the table of what must be reached, in under 10 minutes; BENCH_ARGS=--strict fails on a miss
	@tools/baselines.sh programs
	$(call bench_targets,--quick)

bench: $(BENCH_ENVIRONMENTS)  ## the same with all sizes and more rounds; on a quiet machine, an hour or so
	@tools/baselines.sh programs
	$(call bench_targets,)

MINUTES ?= 60
SEED ?= 1

chaos: .venv/tf221.installed  ## an elastic job under a fault every 15 s for MINUTES (60), with SEED (1); CHAOS_ARGS="--framework tensorflow"
	$(call say,an elastic job with faults for $(MINUTES) minutes)
	@mkdir -p build && cd build && $(VENV)/tf221/bin/tfcollective bench chaos --minutes $(MINUTES) --seed $(SEED) --out $(BENCH_OUT) $(CHAOS_ARGS)

# ---- clean ----------------------------------------------------------------------------------------------------------

clean:           ## remove what was built; the environments stay
	rm -rf build benchmarks/build dist models *.egg-info benchmarks/*.egg-info tfcollective/_native/*.so tfcollective/_native/tf_gpu .mypy_cache .ruff_cache .import_linter_cache .venv/*.installed

distclean: clean ## remove the environments, too
	rm -rf .venv
