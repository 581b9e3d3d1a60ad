# The suites of Python tests, and the benchmarks. tools/pytest.sh ENVIRONMENT ARGUMENT... adds PYTEST_ARGS.

# These tests do not touch TensorFlow, or only the documentation and the benchmarks: once is enough.
ONCE := $(addprefix --ignore=tests/,multiprocess gpu kubernetes e2e/test_docs.py $(addprefix unit/,agent bench cli control docs failures \
  identity launch launchers private_directory settings task_specs tasks timeline topology)) '--ignore-glob=tests/e2e/test_bench*.py'

# Many tests mostly wait, for processes or for deadlines: four files at a time even on two cores, in the order of
# tests/conftest.py.
AT_ONCE := --numprocesses 4 --dist loadfile --no-loadscope-reorder

test-python: test-unit test-jobs test-tf215  ## Python tests under both TensorFlow versions

test-unit: .venv/tf221.installed
	@$(PYTEST) tf221 $(AT_ONCE) tests/unit

test-jobs: .venv/tf221.installed  ## tests of jobs: processes on this machine, under TensorFlow 2.21
	@$(PYTEST) tf221 $(AT_ONCE) --ignore=tests/unit tests

ifneq ($(PYTHON_TF215),)
test-tf215: .venv/tf215.installed
	@$(PYTEST) tf215 $(AT_ONCE) tests $(ONCE)
else
test-tf215:
	$(call say,skipped: TensorFlow 2.15.1 needs Python 3.10 or 3.11 and none was found)
endif

# Each minor version with its own Keras. All but the nightly have wheels for Python 3.10 and 3.11.
TENSORFLOWS_WITH ?= 2.15.1 2.16.2 2.17.1 2.18.1 2.19.1 2.20.0 2.21.0 2.21.0-tf_keras nightly
test-tensorflows: dist/wheel.made  ## the same wheel with every minor version of TensorFlow, one after the other (TENSORFLOWS_WITH="2.16.2 nightly")
	@PYTHON="$(PYTHON)" PYTHON_TF215="$(PYTHON_TF215)" tools/test_tensorflows.sh "$(TENSORFLOWS_WITH)" $(AT_ONCE) tests $(ONCE)

test-long: $(TENSORFLOWS:%=.venv/%.installed) test-late  ## longer tests of examples and benchmarks, under both TensorFlow versions
	@$(PYTEST) tf221 -n 2 --dist load -m long tests
	$(if $(PYTHON_TF215),@$(PYTEST) tf215 -n 2 --dist load -m long $(addprefix tests/,e2e/test_examples.py e2e/test_winequality.py keras tensorflow))

ELASTIC_WITH ?= $(TENSORFLOWS)
test-elastic: $(ELASTIC_WITH:%=elastic/%)  ## faults of elastic jobs in all places (ELASTIC_WITH=tf221)
elastic/%: .venv/%.installed
	@$(PYTEST) $* --numprocesses 3 --dist load -m elastic $(addprefix tests/,keras tensorflow $(if $(filter tf221,$*),multiprocess e2e))

# A second logical device of the processor stands for a GPU; see tests/support/second_device.py.
PLACED_WITH ?= $(TENSORFLOWS)
test-second-device: $(PLACED_WITH:%=second-device/%)  ## tests of keras/ and tensorflow/ with variables on a second device (PLACED_WITH=tf221)
second-device/%: .venv/%.installed
	@TFC_TESTS_SECOND_DEVICE=1 $(PYTEST) $* $(AT_ONCE) \
	  -m "not hosts and not engines and not yarn and not slurm and not kubernetes and not spark and not foreign and not elastic" \
	  $(addprefix tests/,keras tensorflow unit/keras unit/tensorflow)

test-pythons:    ## tests that need no TensorFlow, under every Python that is here (PYTHONS=...)
	@$(MAKE) --no-print-directory $(foreach python,$(PYTHONS),alone/$(notdir $(python)))
alone/%: .venv/alone-%.installed
	@$(PYTEST) alone-$* -q $(AT_ONCE) -m "not tensorflow" tests/unit tests/multiprocess/test_launcher_api.py tests/multiprocess/test_launcher_run.py

test-engines: .venv/tf215.installed  ## jobs on Horovod's and MPI's engines (tools/baselines.sh makes them), also under srun (slurm-wlm, munge)
	@$(PYTEST) tf215 -m engines tests/engines

test-foreign:    ## jobs whose ranks use JAX's and torch's own collectives; fetches torch the first time, some gigabytes
	@if $(MAKE) --no-print-directory .venv/foreign.made; then $(MAKE) --no-print-directory foreign-tests; \
	  else echo "skipped: JAX, Keras and torch cannot be installed here"; fi
foreign-tests: .venv/foreign.installed
	@$(PYTEST) foreign -m foreign tests/foreign

# Where this machine cannot run them, tools/possible.sh says why.
test-hosts: .venv/tf221.installed  ## jobs over ssh on network namespaces as hosts; needs root and openssh-server
	@tools/possible.sh hosts tools/own_network.sh $(PYTEST) tf221 -m hosts tests/hosts tests/multiprocess/test_joined.py

test-slurm: .venv/tf221.installed  ## jobs on a real SLURM of three nodes on this machine; needs root, slurm-wlm, munge and iproute2
	@tools/possible.sh slurm tools/own_network.sh $(PYTEST) tf221 -m slurm tests/slurm

test-kubernetes: .venv/tf221.installed  ## jobs in pods, which are processes in namespaces behind Kubernetes' API; needs root and iproute2
	@tools/possible.sh kubernetes tools/own_network.sh $(PYTEST) tf221 -m kubernetes tests/kubernetes
	@$(MAKE) --no-print-directory check-manifests

# The first time, Go fetches Kubernetes itself and takes some minutes.
build/k8scheck: tools/k8scheck/main.go tools/k8scheck/go.mod tools/k8scheck/go.sum
	@mkdir -p build && cd tools/k8scheck && nice go build -o $(CURDIR)/$@ .

check-manifests: .venv/tf221.installed
	$(call say,manifests as an API server sees them)
	@if ! command -v go >/dev/null; then echo "skipped: Go is not installed"; \
	  elif [ ! -e build/k8scheck ] && ! (cd tools/k8scheck && go mod download k8s.io/kubernetes); then echo "skipped: Go cannot fetch Kubernetes"; \
	  else $(MAKE) --no-print-directory build/k8scheck && \
	  PATH="$(CURDIR)/build:$$PATH" $(PYTEST) tf221 -q -k api_server tests/unit/launchers/test_kubernetes_manifest.py; fi

test-spark:      ## jobs on a real Spark cluster on this machine's loopback; says why where it cannot run
	@tools/possible.sh spark $(MAKE) --no-print-directory spark-tests
spark-tests: $(TENSORFLOWS:%=.venv/%.installed) $(TENSORFLOWS:%=.venv/spark-%.made)
	@$(PYTEST) spark-tf221 -m spark tests/spark
	$(if $(PYTHON_TF215),@$(PYTEST) spark-tf215 -m "spark and tensorflow" tests/spark)

# HADOOP_RELEASE=3.5.0. $(1): options of `hadoop up`, $(2): what runs on it
define on_hadoop
	@up() { tools/hadoop/hadoop up $(1) $(HADOOP_RELEASE:%=--version %); }; up || exit 1; trap 'tools/hadoop/hadoop down' EXIT; \
	  eval "$$(tools/hadoop/hadoop env)"; $(2)
endef

test-yarn: $(TENSORFLOWS:%=.venv/%.installed) $(TENSORFLOWS:%=.venv/yarn-%.made)  ## jobs on a real YARN on this machine's loopback; needs Java 17 and Maven
	$(call on_hadoop,,$(PYTEST) yarn-tf221 -m "yarn and not kerberos" tests/yarn \
	  $(if $(PYTHON_TF215),&& $(PYTEST) yarn-tf215 -m "yarn and not kerberos" tests/yarn/test_wine.py))

test-kerberos: .venv/tf221.installed .venv/yarn-tf221.made  ## jobs on a YARN and an HDFS with a real KDC; needs Java 17, Maven and krb5-kdc
	$(call on_hadoop,--kerberos,$(PYTEST) yarn-tf221 -m "yarn and kerberos" tests/yarn/test_kerberos.py)

test-gpu: .venv/tf221.installed  ## the matrix on a real GPU; says why where it cannot run
	@$(PYTEST) tf221 -m gpu tests/gpu

SOAK ?= 50
test-soak: .venv/tf221.installed  ## the kill tests, SOAK (50) times
	@$(PYTEST) tf221 -q -m kill --count $(SOAK) --repeat-scope session --numprocesses 4 --dist load --maxschedchunk 1 \
	  $(shell grep -rl 'mark\.kill' tests --include='test_*.py')

# ---- benchmarks -----------------------------------------------------------------------------------------------------

# What is missing of the others (tools/baselines.sh) is shown as not measured. BENCH_ARGS="--only allreduce --strict" ...
BENCH_OUT ?= $(CURDIR)/build/bench
bench: QUICK =
bench-quick: QUICK = --quick
bench-quick:     ## the table of what must be reached, in under 10 minutes; BENCH_ARGS=--strict fails on a miss
bench:           ## the same with all sizes and more rounds; on a quiet machine, an hour or so
# What Keras 2 has to be compared with runs under TensorFlow 2.15.
bench bench-quick: $(TENSORFLOWS:%=.venv/%.installed)
	@tools/baselines.sh programs
	@mkdir -p build && cd build && $(VENV)/tf221/bin/tfcollective bench targets --baselines $(VENV) --out $(BENCH_OUT) $(QUICK) $(BENCH_ARGS)

MINUTES ?= 60
SEED ?= 1
chaos: .venv/tf221.installed  ## an elastic job under a fault every 15 s for MINUTES (60), with SEED (1); CHAOS_ARGS="--framework tensorflow"
	@mkdir -p build && cd build && $(VENV)/tf221/bin/tfcollective bench chaos --minutes $(MINUTES) --seed $(SEED) --out $(BENCH_OUT) $(CHAOS_ARGS)
