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
             -o -name '*.py' -o -name py.typed \) 2>/dev/null) CMakeLists.txt pyproject.toml benchmarks/pyproject.toml setup.py README.md LICENSE \
             NOTICE MANIFEST.in benchmarks/LICENSE benchmarks/README.md
TENSORFLOW_tf221 := tensorflow-cpu==2.21.0
TENSORFLOW_tf215 := tensorflow-cpu==2.15.1
# What belongs to no TensorFlow is tested once.
EXTRAS_tf221 := mlflow test-kubernetes
PYTHON_tf221 = $(PYTHON)
PYTHON_tf215 = $(PYTHON_TF215)
# What runs from the tools environment (cmake, ninja) must find its companions there.
WITH_TOOLS := PATH="$(TOOLS)/bin:$$PATH"
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
# Of what pip prints, the files that it takes, so that an installation of minutes shows that it goes on.
PIP_SHOWN := -m pip install --disable-pip-version-check --progress-bar off
FILES_TAKEN := sed --unbuffered --quiet --regexp-extended 's/^ *(Downloading|Using cached) ([^ ]*\.(whl|gz))( .*|$$)/  \2\4/p'
say = @printf '\n\033[1m== %s\033[0m\n' "$(1)"

# A list of requirements that cannot be made must end the installation.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: help demo docs test lint format wheel develop test-native test-native-aarch64 test-native-asan test-native-tsan test-python \
  test-tf221 test-tf215 test-tensorflows test-slurm test-long test-late test-elastic test-second-device test-pythons test-hosts test-engines \
  test-yarn test-soak test-all bench bench-quick chaos bench-native googletest clean distclean test-kubernetes test-spark test-kerberos

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

test-all:        ## what .ci/run and `make test` leave out: long tests, sanitizers, other Pythons, hosts, SLURM, Kubernetes, Spark, YARN; hours
	@tools/test_all.sh

# ---- environments ---------------------------------------------------------------------------------------------------

ENVIRONMENTS := .venv/tools.made .venv/tf221.made $(if $(PYTHON_TF215),.venv/tf215.made)

.venv/tools.made: pyproject.toml tools/requirements.py tools/make_venv.sh
	$(call say,environment .venv/tools: build and lint tools)
	@test -n "$(PYTHON)" || { echo "error: tfcollective needs Python 3.10 to 3.13, and none was found (set PYTHON=...)" >&2; exit 1; }
	@tools/make_venv.sh "$(PYTHON)" $(TOOLS)
	@$(TOOLS)/bin/python tools/requirements.py build run dev | $(TOOLS)/bin/python $(PIP_SHOWN) -r /dev/stdin | $(FILES_TAKEN)
	@touch $@

.venv/%.made: pyproject.toml tools/requirements.py tools/make_venv.sh
	$(call say,environment .venv/$*: $(TENSORFLOW_$*))
	@test -n "$(PYTHON_$*)" || { echo "error: no Python for $(TENSORFLOW_$*) was found" >&2; exit 1; }
	@tools/make_venv.sh "$(PYTHON_$*)" $(VENV)/$*
	@$(VENV)/$*/bin/python tools/requirements.py run test $(EXTRAS_$*) | \
	  $(VENV)/$*/bin/python $(PIP_SHOWN) -r /dev/stdin "$(TENSORFLOW_$*)" | $(FILES_TAKEN)
	@touch $@

dist/wheel.made: .venv/tools.made $(SOURCES)
	$(call say,wheels)
	@rm -rf dist/*.whl build/lib build/bdist.* benchmarks/build
	@$(WITH_TOOLS) cmake -S . -B $(NATIVE) -G Ninja
	@$(WITH_TOOLS) cmake --build $(NATIVE) --target wheel_libraries --parallel $(JOBS)  # pip would not show its progress
	@$(WITH_TOOLS) $(TOOLS)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  --wheel-dir dist . ./benchmarks
	@ls dist/*.whl
	@touch $@

# The same wheels go into every environment.
.venv/%.installed: .venv/%.made dist/wheel.made
	@$(VENV)/$*/bin/python $(PIP_INSTALL) --force-reinstall --no-deps dist/*.whl
	@touch $@

wheel: dist/wheel.made  ## build the wheels of tfcollective and of its benchmarks into dist/

# ---- release --------------------------------------------------------------------------------------------------------

RELEASE_TOOLS := $(VENV)/release
TENSORFLOWS := tf221 $(if $(PYTHON_TF215),tf215)
# The environments whose TensorFlow the GPU kernels are compiled for.
RELEASE_KERNELS := $(TENSORFLOWS:%=--kernels-for $(VENV)/%/bin/python)
# Zig keeps here what it has compiled, its C and C++ libraries included: the first build takes minutes longer.
WITH_ZIG := dist/release/made release-reproduce test-native-aarch64
$(WITH_ZIG): export ZIG_GLOBAL_CACHE_DIR := $(CURDIR)/build/zig
$(WITH_ZIG): export TFC_ZIG = $(shell echo $(RELEASE_TOOLS)/lib/python3.*/site-packages/ziglang/zig)

.venv/release.made: pyproject.toml tools/requirements.py tools/make_venv.sh
	$(call say,environment .venv/release: tools that build and check releases)
	@tools/make_venv.sh "$(PYTHON)" $(RELEASE_TOOLS)
	@$(RELEASE_TOOLS)/bin/python tools/requirements.py build release | $(RELEASE_TOOLS)/bin/python $(PIP_INSTALL) -r /dev/stdin
	@touch $@

.PHONY: release release-check release-reproduce test-release
release: dist/release/made  ## manylinux wheels for x86-64 and aarch64, the benchmarks' wheel and the sdists, into dist/release/

dist/release/made: .venv/release.made $(TENSORFLOWS:%=.venv/%.made) $(SOURCES) NOTICE $(wildcard tools/release/*)
	$(call say,release)
	@PATH="$(RELEASE_TOOLS)/bin:$$PATH" $(RELEASE_TOOLS)/bin/python tools/release/build.py --work build/release --out dist/release $(RELEASE_KERNELS)
	@touch $@

RELEASE_CHECK = PATH="$(RELEASE_TOOLS)/bin:$$PATH" $(RELEASE_TOOLS)/bin/python tools/release/check.py dist/release

release-check: dist/release/made  ## check what `make release` has made; CHECK_ARGS=--unreleased before the changelog has the version
	$(call say,checks of the release)
	@$(RELEASE_CHECK) $(PYTHONS:%=--python %) $(TENSORFLOWS:%=--tensorflow $(VENV)/%/bin/python) $(CHECK_ARGS)

RELEASE_WITH ?= $(TENSORFLOWS)
# What touches the shared objects, and jobs from end to end.
RELEASE_TESTS ?= $(addprefix tests/,unit/native unit/communicator multiprocess/test_without_launcher.py tensorflow keras)

test-release: $(RELEASE_WITH:%=release-with/%)  ## tests with the wheel of the release (RELEASE_WITH=tf221 RELEASE_TESTS=...)

# In front of what is in .venv/tf221 or .venv/tf215: what these have installed themselves stays.
.PHONY: $(RELEASE_WITH:%=release-with/%)
$(RELEASE_WITH:%=release-with/%): release-with/%: .venv/%.made dist/release/made
	$(call say,tests with the wheel of the release and $(TENSORFLOW_$*))
	@$(call venv_on_top,release-$*,$*)
	@$(VENV)/release-$*/bin/python $(PIP_INSTALL) --force-reinstall --no-deps dist/release/*manylinux*_$$(uname -m).whl dist/release/*-none-any.whl
	@mkdir -p build/tests-release-$* && cd build/tests-release-$* && $(VENV)/release-$*/bin/python -m pytest -c $(CURDIR)/pyproject.toml \
	  --rootdir $(CURDIR) -o cache_dir=$(CURDIR)/build/tests-release-$*/cache $(AT_ONCE) $(RELEASE_TESTS:%=$(CURDIR)/%) $(PYTEST_ARGS) </dev/null

release-reproduce: dist/release/made  ## build the release again in a clone of the last commit, and compare
	$(call say,the same release from a clone)
	@rm -rf build/reproduce && git clone --quiet . build/reproduce/clone
	@PATH="$(RELEASE_TOOLS)/bin:$$PATH" $(RELEASE_TOOLS)/bin/python build/reproduce/clone/tools/release/build.py \
	  --work build/reproduce/work --out build/reproduce/out $(RELEASE_KERNELS)
	@diff dist/release/SHA256SUMS build/reproduce/out/SHA256SUMS && echo "the files are equal"
	@rm -rf build/reproduce

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
LINTERS := types contracts style site native

lint: .venv/tools.made  ## ruff, mypy, import-linter, layers and thread safety of the native code, clang-format, the documentation site
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

# Strict: a broken link, or a name that the Python reference cannot find, is an error. So are Sphinx's roles, and the \| of
# a table in code, which GitHub shows without the backslash.
lint/site:
	@mkdir -p build
	@$(WITH_TOOLS) $(TOOLS)/bin/zensical build --strict --clean >build/site.log 2>&1 || { cat build/site.log; exit 1; }
	@! grep -rnE --include='*.html' ':(func|class|meth|mod):|<code>[^<]*\\\|' build/site || { echo "error: the site shows this markup as it is written"; exit 1; }

docs: .venv/tools.made  ## build the documentation site into build/site
	$(call say,documentation)
	@$(MAKE) --no-print-directory lint/site
	@echo "open build/site/index.html, or: python3 -m http.server --directory build/site"

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

# The compiler and the toolchain file of `make release`, for another processor that is emulated.
AARCH64_LIBC := build/aarch64-libc
AARCH64 := --toolchain $(CURDIR)/tools/release/zig.cmake -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
  '-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64-static;-L;$(CURDIR)/$(AARCH64_LIBC)/usr/aarch64-linux-gnu'

# They make system calls fail with seccomp, which the emulator does not have, or read TCP_INFO, of which it gives 4 bytes.
NOT_EMULATED := ArenaMemoryTest.(ARefused|TooLittle|AChannelThat|AFileSystem)|TroubleTest.(Where|SharedMemoryThatRuns|WithoutMemory)|\
  AckWatchTest.AHostThatIsCutOffIsSilent

test-native-aarch64: export TFC_RELEASE_MACHINE := aarch64
test-native-aarch64: .venv/tools.made .venv/release.made googletest $(AARCH64_LIBC)  ## native tests for aarch64, emulated by qemu-aarch64-static; slow
	$(call say,native tests for aarch64)
	@command -v qemu-aarch64-static >/dev/null || { echo "error: install qemu-aarch64-static (apt-get install qemu-user-static)" >&2; exit 1; }
	$(call native_tests,build/aarch64,$(AARCH64),-E '$(subst | ,|,$(NOT_EMULATED))')

# The C library of an aarch64 Debian, unpacked and not installed.
$(AARCH64_LIBC):
	@rm -rf $@.part && mkdir -p $@.part && chmod 777 $@.part
	@cd $@.part && apt-get download --quiet libc6-arm64-cross && dpkg -x libc6-arm64-cross*.deb . && rm libc6-arm64-cross*.deb
	@mv $@.part $@

bench-native: .venv/tools.made  ## build and run the native benchmarks
	@$(WITH_TOOLS) cmake -S . -B $(NATIVE) -G Ninja -DTFC_BENCHMARKS=ON
	@$(WITH_TOOLS) cmake --build $(NATIVE) --parallel $(JOBS)
	@for benchmark in $(NATIVE)/bench_*; do [ ! -x $$benchmark ] || { echo "== $$benchmark"; $$benchmark || exit 1; }; done

# ---- Python ---------------------------------------------------------------------------------------------------------

# pytest runs in a folder of its own, so that the installed package is tested and not the source tree.
# $(1): environment, $(2): name of the folder, $(3): pytest options, $(4): a command that runs it
pytest_in = mkdir -p build/tests-$(2) && cd build/tests-$(2) && $(4) $(VENV)/$(1)/bin/python -m pytest -c $(CURDIR)/pyproject.toml \
  --rootdir $(CURDIR) -o cache_dir=$(CURDIR)/build/tests-$(2)/cache $(3) </dev/null
# $(1): environment, $(2): pytest options
python_tests = @$(call pytest_in,$(1),$(1),$(2))

# $(1): a suite, $(2): what runs it; says why where this machine cannot
where_possible = @reason=$$(tools/possible.sh $(1)); if [ -n "$$reason" ]; then echo "skipped: $$reason"; else $(2); fi
OWN_NETWORK := $(CURDIR)/tools/own_network.sh

# $(1): an environment that sees what is in $(2), and comes first
venv_on_top = tools/make_venv.sh "$(PYTHON_$(2))" $(VENV)/$(1) && folder='import sysconfig; print(sysconfig.get_path("purelib"))' && \
  $(VENV)/$(2)/bin/python -c "$$folder" >"$$($(VENV)/$(1)/bin/python -c "$$folder")/$(2).pth"

# These tests do not touch TensorFlow, or only the documentation and the benchmarks: once is enough.
ROOMS_WITHOUT_TENSORFLOW := agent bench cli control docs failures identity launch launchers private_directory settings \
  task_specs tasks timeline topology
ONCE := --ignore $(CURDIR)/tests/multiprocess --ignore $(CURDIR)/tests/gpu --ignore $(CURDIR)/tests/kubernetes --ignore-glob '$(CURDIR)/tests/e2e/test_bench*.py' \
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

# Each minor version with its own Keras. All but the nightly have wheels for Python 3.10 and 3.11.
TENSORFLOWS_WITH ?= 2.15.1 2.16.2 2.17.1 2.18.1 2.19.1 2.20.0 2.21.0 nightly
TENSORFLOWS_RESULTS := $(CURDIR)/build/tensorflows.md
TENSORFLOW_tf-nightly := tf-nightly
PYTHON_tf-nightly = $(PYTHON)
define numbered_tensorflow
TENSORFLOW_tf-$(1) := tensorflow-cpu==$(1)
PYTHON_tf-$(1) = $$(or $$(PYTHON_TF215),$$(PYTHON))
endef
$(foreach version,$(filter-out nightly,$(TENSORFLOWS_WITH)),$(eval $(call numbered_tensorflow,$(version))))

test-tensorflows: dist/wheel.made  ## the same wheel with every minor version of TensorFlow, one after the other (TENSORFLOWS_WITH="2.16.2 nightly")
	@mkdir -p build && printf '| TensorFlow | Keras | Python | Tests | Seconds |\n|---|---|---|---|---|\n' >$(TENSORFLOWS_RESULTS)
	@$(MAKE) --no-print-directory --keep-going --jobs=1 $(TENSORFLOWS_WITH:%=with-tensorflow/%); code=$$?; \
	  cat $(TENSORFLOWS_RESULTS); exit $$code

# The environment goes again: all of them take 14 GB. That no nightly can be installed is no failure.
.PHONY: $(TENSORFLOWS_WITH:%=with-tensorflow/%)
$(TENSORFLOWS_WITH:%=with-tensorflow/%): with-tensorflow/%:
	$(call say,tests with $(TENSORFLOW_tf-$*) and the same wheel)
	@rm -f build/tests-tf-$*/results.xml
	@$(MAKE) --no-print-directory .venv/tf-$*.installed || true
	@if [ -e .venv/tf-$*.installed ]; then \
	  ($(call pytest_in,tf-$*,tf-$*,$(AT_ONCE) --junitxml=results.xml $(CURDIR)/tests $(ONCE) $(PYTEST_ARGS))); code=$$?; \
	  $(VENV)/tf-$*/bin/python tools/tensorflow_row.py build/tests-tf-$*/results.xml >>$(TENSORFLOWS_RESULTS); \
	else code=$(if $(filter nightly,$*),0,1); echo "| $* | | | cannot be installed | |" >>$(TENSORFLOWS_RESULTS); fi; \
	rm -rf .venv/tf-$*{,.made,.installed}; exit $$code

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
PLACED_ONES := -m "not hosts and not engines and not yarn and not slurm and not kubernetes and not spark and not elastic" $(PLACED) $(PYTEST_ARGS)

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

test-engines: .venv/tf215.installed  ## jobs on Horovod's and MPI's engines (tools/baselines.sh makes them), also under srun (slurm-wlm, munge)
	$(call say,jobs on other engines)
	@$(call pytest_in,tf215,engines,-m engines $(CURDIR)/tests/engines $(PYTEST_ARGS))

test-hosts: .venv/tf221.installed  ## jobs over ssh on network namespaces as hosts; needs root and openssh-server
	$(call say,jobs on several hosts)
	$(call where_possible,hosts,$(call pytest_in,tf221,hosts,-m hosts $(CURDIR)/tests/hosts $(CURDIR)/tests/multiprocess/test_joined.py $(PYTEST_ARGS),$(OWN_NETWORK)))

test-slurm: .venv/tf221.installed  ## jobs on a real SLURM of three nodes on this machine; needs root, slurm-wlm, munge and iproute2
	$(call say,jobs on SLURM)
	$(call where_possible,slurm,$(call pytest_in,tf221,slurm,-m slurm $(CURDIR)/tests/slurm $(PYTEST_ARGS),$(OWN_NETWORK)))

test-kubernetes: .venv/tf221.installed  ## jobs in pods, which are processes in namespaces behind Kubernetes' API; needs root and iproute2
	$(call say,jobs on Kubernetes)
	$(call where_possible,kubernetes,$(call pytest_in,tf221,kubernetes,-m kubernetes $(CURDIR)/tests/kubernetes $(PYTEST_ARGS),$(OWN_NETWORK)))
	@$(MAKE) --no-print-directory check-manifests

# The first time, Go fetches Kubernetes itself and takes some minutes.
build/k8scheck: tools/k8scheck/main.go tools/k8scheck/go.mod tools/k8scheck/go.sum
	@mkdir -p build
	@cd tools/k8scheck && nice go build -o $(CURDIR)/$@ .

.PHONY: check-manifests
check-manifests: .venv/tf221.installed
	$(call say,manifests as an API server sees them)
	@if ! command -v go >/dev/null; then echo "skipped: Go is not installed"; \
	  elif [ ! -e build/k8scheck ] && ! (cd tools/k8scheck && go mod download k8s.io/kubernetes); then \
	    echo "skipped: Go cannot fetch Kubernetes"; else \
	  $(MAKE) --no-print-directory build/k8scheck && $(call pytest_in,tf221,tf221,-q -k api_server \
	    $(CURDIR)/tests/unit/launchers/test_kubernetes_manifest.py,PATH="$(CURDIR)/build:$$PATH"); fi

# What is in .venv/tf221 or .venv/tf215, and skein beside it.
.venv/yarn-%.made: .venv/%.made pyproject.toml tools/requirements.py tools/make_venv.sh
	$(call say,environment .venv/yarn-$*: that of $(TENSORFLOW_$*) with skein)
	@$(call venv_on_top,yarn-$*,$*)
	@$(VENV)/yarn-$*/bin/python tools/requirements.py yarn hdfs webhdfs s3 | \
	  $(VENV)/yarn-$*/bin/python $(PIP_INSTALL) -r /dev/stdin 'moto[server]'
	@touch $@

# What is in .venv/tf221 or .venv/tf215, and pyspark beside it. TensorFlow 2.15 cannot use NumPy 2, which the newest
# pandas and pyarrow need.
SPARK_WITH_tf215 := 'numpy<2' 'pandas<3' 'pyarrow<22'

.venv/spark-%.made: .venv/%.made pyproject.toml tools/requirements.py tools/make_venv.sh
	$(call say,environment .venv/spark-$*: that of $(TENSORFLOW_$*) with pyspark)
	@$(call venv_on_top,spark-$*,$*)
	@$(VENV)/spark-$*/bin/python tools/requirements.py spark | $(VENV)/spark-$*/bin/python $(PIP_INSTALL) -r /dev/stdin $(SPARK_WITH_$*)
	@touch $@

SPARK_ENVIRONMENTS := tf221 $(if $(PYTHON_TF215),tf215)

# $(1): environment, $(2): mark of its tests
spark_tests = ($(call pytest_in,spark-$(1),spark,-m "$(2)" $(CURDIR)/tests/spark $(PYTEST_ARGS)))

test-spark:      ## jobs on a real Spark cluster on this machine's loopback; says why where it cannot run
	$(call say,jobs on Spark)
	$(call where_possible,spark,$(MAKE) --no-print-directory spark-tests)

.PHONY: spark-tests
spark-tests: $(SPARK_ENVIRONMENTS:%=.venv/%.installed) $(SPARK_ENVIRONMENTS:%=.venv/spark-%.made)
	@failed=0; { $(call spark_tests,tf221,spark); } || failed=1; \
	  $(if $(filter tf215,$(SPARK_ENVIRONMENTS)),{ $(call spark_tests,tf215,spark and tensorflow); } || failed=1;) exit $$failed

HADOOP := $(CURDIR)/tools/hadoop/hadoop
HADOOP_VERSION := $(HADOOP_RELEASE:%=--version %)  # of test-yarn and test-kerberos: HADOOP_RELEASE=3.5.0
YARN_ENVIRONMENTS := tf221 $(if $(PYTHON_TF215),tf215)

# $(1): environment, $(2): tests, $(3): their mark
yarn_tests = ($(call pytest_in,yarn-$(1),yarn,-m "yarn and $(3)" $(2:%=$(CURDIR)/tests/yarn%) $(PYTEST_ARGS)))

test-yarn: $(YARN_ENVIRONMENTS:%=.venv/%.installed) $(YARN_ENVIRONMENTS:%=.venv/yarn-%.made)  ## jobs on a real YARN on this machine's loopback; needs Java 17 and Maven
	$(call say,jobs on YARN)
	@$(HADOOP) up $(HADOOP_VERSION) || exit 1; trap '$(HADOOP) down' EXIT; eval "$$($(HADOOP) env)"; failed=0; \
	  { $(call yarn_tests,tf221,/,not kerberos); } || failed=1; \
	  $(if $(filter tf215,$(YARN_ENVIRONMENTS)),{ $(call yarn_tests,tf215,/test_wine.py,not kerberos); } || failed=1;) exit $$failed

test-kerberos: .venv/tf221.installed .venv/yarn-tf221.made  ## jobs on a YARN and an HDFS with a real KDC; needs Java 17, Maven and krb5-kdc
	$(call say,jobs on YARN with Kerberos)
	@$(HADOOP) up --kerberos $(HADOOP_VERSION) || exit 1; trap '$(HADOOP) down' EXIT; eval "$$($(HADOOP) env)"; \
	  $(call yarn_tests,tf221,/test_kerberos.py,kerberos)

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
	rm -rf build benchmarks/build dist models *.egg-info benchmarks/*.egg-info tfcollective/_runtime/native_library/*.so tfcollective/_runtime/native_library/tf_gpu .mypy_cache .ruff_cache .import_linter_cache .venv/*.installed

distclean: clean ## remove the environments, too
	rm -rf .venv
