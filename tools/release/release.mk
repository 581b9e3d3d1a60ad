# Releases: CONTRIBUTING.md, "Releases".

RELEASE_TOOLS := $(VENV)/release/bin
WITH_RELEASE_TOOLS := PATH="$(RELEASE_TOOLS):$$PATH"
# The environments whose TensorFlow the GPU kernels are compiled for.
RELEASE_KERNELS := $(TENSORFLOWS:%=--kernels-for $(VENV)/%/bin/python)
# Zig keeps here what it has compiled, its C and C++ libraries included: the first build takes minutes longer.
dist/release/made release-reproduce test-native-aarch64: export ZIG_GLOBAL_CACHE_DIR := $(CURDIR)/build/zig
dist/release/made release-reproduce test-native-aarch64: export TFC_ZIG = $(shell echo $(VENV)/release/lib/python3.*/site-packages/ziglang/zig)

release: dist/release/made  ## manylinux wheels for x86-64 and aarch64, the benchmarks' wheel and the sdists, into dist/release/

dist/release/made: .venv/release.made $(TENSORFLOWS:%=.venv/%.made) $(SOURCES) $(wildcard tools/release/*)
	$(call say,release)
	@$(WITH_RELEASE_TOOLS) python tools/release/build.py --work build/release --out dist/release $(RELEASE_KERNELS)
	@touch $@

release-check: dist/release/made  ## check what `make release` has made; CHECK_ARGS=--unreleased before the changelog has the version
	$(call say,checks of the release)
	@$(WITH_RELEASE_TOOLS) python tools/release/check.py dist/release $(PYTHONS:%=--python %) \
	  $(TENSORFLOWS:%=--tensorflow $(VENV)/%/bin/python) $(CHECK_ARGS)

RELEASE_WITH ?= $(TENSORFLOWS)
# What touches the shared objects, and jobs from end to end.
RELEASE_TESTS ?= $(addprefix tests/,unit/native unit/communicator multiprocess/test_without_launcher.py tensorflow keras)
test-release: $(RELEASE_WITH:%=release-with/%)  ## tests with the wheel of the release (RELEASE_WITH=tf221 RELEASE_TESTS=...)

# In front of what is in .venv/tf221 or .venv/tf215: what these have installed themselves stays.
release-with/%: .venv/%.made dist/release/made
	@tools/make_venv.sh "$(or $(PYTHON_$*),$(PYTHON))" .venv/release-$* --on .venv/$*
	@$(VENV)/release-$*/bin/python $(INSTALL) --force-reinstall dist/release/*manylinux*_$$(uname -m).whl dist/release/*-none-any.whl
	@$(PYTEST) release-$* $(AT_ONCE) $(RELEASE_TESTS)

release-reproduce: dist/release/made  ## build the release again in a clone of the last commit, and compare
	$(call say,the same release from a clone)
	@rm -rf build/reproduce && git clone --quiet . build/reproduce/clone
	@$(WITH_RELEASE_TOOLS) python build/reproduce/clone/tools/release/build.py --work build/reproduce/work --out build/reproduce/out $(RELEASE_KERNELS)
	@diff dist/release/SHA256SUMS build/reproduce/out/SHA256SUMS && echo "the files are equal"
	@rm -rf build/reproduce
