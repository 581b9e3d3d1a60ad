#!/usr/bin/env bash
# Builds what the benchmarks compare with: Horovod with Gloo, Open MPI with mpi4py, and the timing programs in C.
#
#   tools/baselines.sh [--into DIR] [horovod] [mpi] [programs]
#
# Without names: all three. DIR is .venv of the checkout. What is there already is kept; each part can fail alone, and the
# exit code is 1 if one did. Needs a C++ compiler, CMake, and Python 3.10 or 3.11 for Horovod (PYTHON=...).
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
into=$root/.venv
parts=()

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'error: %s\n' "$1" >&2; shift; printf '  %s\n' "$@" >&2; return 1; }
usage() { sed -n '2,7s/^# \{0,1\}//p' "$0"; }

while [ $# -gt 0 ]; do
  case $1 in
    --into) [ $# -ge 2 ] || { usage >&2; exit 64; }; into=$2; shift ;;
    -h | --help) usage; exit 0 ;;
    horovod | mpi | programs) parts+=("$1") ;;
    *) echo "error: unknown argument $1" >&2; usage >&2; exit 64 ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=(horovod mpi programs)
mkdir -p "$into" && into=$(cd "$into" && pwd) || exit 1

# system_packages WHAT PACKAGE...: installs Debian packages when root, else says which are missing.
system_packages() {
  local what=$1
  shift
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing $*"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } \
      </dev/null >"$into/packages.log" 2>&1 && return 0
    tail -5 "$into/packages.log" >&2
    fail "could not install $what" "see $into/packages.log"
  else
    fail "$what is missing, and only root can install it. As root:" "apt-get install $*    (Debian, Ubuntu)" "then run this script again"
  fi
}

python_for() { # OLDEST NEWEST
  local found=${PYTHON:-}
  [ -n "$found" ] && { echo "$found"; return; }
  "$root/tools/find_python.sh" "$1" "$2"
}

# ---- Horovod 0.28.1 with Gloo, under TensorFlow 2.15.1 ----------------------------------------------------------------

horovod_works() {
  [ -x "$into/horovod/bin/python" ] &&
    "$into/horovod/bin/python" -c 'import horovod.tensorflow as hvd; assert hvd.gloo_built()' >/dev/null 2>&1
}

# What tfcollective needs itself: our jobs run in that environment, too.
add_our_requirements() {
  "$into/horovod/bin/python" "$root/tools/requirements.py" run |
    "$into/horovod/bin/python" -m pip install --quiet --disable-pip-version-check -r /dev/stdin
}

build_horovod() {
  if horovod_works; then
    say "Horovod is there: $into/horovod"
    add_our_requirements
    return
  fi
  local python
  python=$(python_for 3.10 3.11)
  [ -n "$python" ] || { fail "TensorFlow 2.15.1 needs Python 3.10 or 3.11, and none was found" "set PYTHON=/path/to/python3.11"; return 1; }
  command -v cmake >/dev/null && command -v c++ >/dev/null || system_packages "a C++ compiler or CMake" g++ cmake make || return 1
  say "Horovod 0.28.1 (Gloo only) with TensorFlow 2.15.1, into $into/horovod: a few minutes"
  "$root/tools/make_venv.sh" "$python" "$into/horovod" || return 1
  local pip=("$into/horovod/bin/python" -m pip install --quiet --disable-pip-version-check)
  "${pip[@]}" 'setuptools<70' wheel cloudpickle pyyaml packaging cffi 'numpy<2' 'tensorflow-cpu==2.15.1' || return 1
  # Horovod's bundled Gloo asks for a CMake policy that CMake 4 no longer has.
  env CMAKE_POLICY_VERSION_MINIMUM=3.5 HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
    HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_GLOO=1 MAKEFLAGS="-j${JOBS:-$(nproc)}" CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}" \
    "${pip[@]}" --no-build-isolation 'horovod==0.28.1' >"$into/horovod.log" 2>&1 ||
    { tail -20 "$into/horovod.log" >&2; fail "Horovod did not build" "see $into/horovod.log"; return 1; }
  horovod_works || { fail "Horovod was built but does not import" "try: $into/horovod/bin/python -c 'import horovod.tensorflow'"; return 1; }
  add_our_requirements
}

# ---- Open MPI and mpi4py ---------------------------------------------------------------------------------------------

mpi_works() {
  [ -x "$into/mpi/bin/python" ] && "$into/mpi/bin/python" -c 'from mpi4py import MPI; import numpy' >/dev/null 2>&1
}

build_mpi() {
  command -v mpirun >/dev/null && command -v mpicc >/dev/null || system_packages "Open MPI" openmpi-bin libopenmpi-dev || return 1
  if mpi_works; then
    say "mpi4py is there: $into/mpi"
    return 0
  fi
  local python
  python=$(python_for 3.10 3.13)
  [ -n "$python" ] || { fail "mpi4py needs Python 3.10 to 3.13, and none was found" "set PYTHON=/path/to/python3"; return 1; }
  say "mpi4py for $(mpirun --version | head -1), into $into/mpi"
  "$root/tools/make_venv.sh" "$python" "$into/mpi" || return 1
  # Built here, against this Open MPI: a ready-made wheel may be for another one.
  "$into/mpi/bin/python" -m pip install --quiet --disable-pip-version-check --no-binary mpi4py numpy 'mpi4py>=3.1' >"$into/mpi.log" 2>&1 ||
    { tail -20 "$into/mpi.log" >&2; fail "mpi4py did not build" "see $into/mpi.log"; return 1; }
  mpi_works || fail "mpi4py was built but does not import" "try: $into/mpi/bin/python -c 'from mpi4py import MPI'"
}

# ---- the timing loop in C: once with tfcollective, once with MPI ------------------------------------------------------

build_programs() {
  local source=$root/native/benchmarks/programs/allreduce.cc flags=(-std=c++17 -O2 -Wall -Wextra) bin=$into/programs
  mkdir -p "$bin"
  if [ "$bin/allreduce" -nt "$source" ] && { [ "$bin/allreduce_mpi" -nt "$source" ] || ! command -v mpicxx >/dev/null; }; then
    say "the timing programs are there: $bin"
    return 0
  fi
  command -v c++ >/dev/null || system_packages "a C++ compiler" g++ || return 1
  say "timing programs, into $bin"
  # Under another name first: half a program, newer than its source, would count as there.
  local half=$bin/.half
  c++ "${flags[@]}" -I"$root/native/include" "$source" -o "$half" -ldl && mv "$half" "$bin/allreduce" || return 1
  if command -v mpicxx >/dev/null; then
    mpicxx "${flags[@]}" -DTFC_BENCHMARK_MPI -DOMPI_SKIP_MPICXX "$source" -o "$half" && mv "$half" "$bin/allreduce_mpi" ||
      return 1
  else
    echo "without mpicxx there is no program for Open MPI (tools/baselines.sh mpi)"
  fi
}

failed=()
for part in horovod mpi programs; do
  case " ${parts[*]} " in *" $part "*) "build_$part" || failed+=("$part") ;; esac
done
[ ${#failed[@]} -eq 0 ] || { printf '\nerror: not built: %s\n' "${failed[*]}" >&2; exit 1; }
say "done: tfcollective bench finds these when it runs in this checkout"
