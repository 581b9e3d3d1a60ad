#!/usr/bin/env bash
# Takes what is needed to a machine with a GPU, and runs it there.
#
#   tools/gpu_check.sh pack FOLDER       fills FOLDER (some MiB): the packages as built here, the tests, this script
#   FOLDER/gpu_check.sh                  on the machine with the GPU: runs them; needs Python 3.10 to 3.13, numpy and CuPy
#                                        there, and nothing from a network
#
# To have two ranks on one GPU, NCCL 2.30.3 or newer is needed. Put libnccl.so.2 into FOLDER, whole or in pieces:
#   split -b 59M libnccl.so.2 FOLDER/libnccl.so.2.part.
set -euo pipefail

usage() { sed -n '2,9s/^# \{0,1\}//p' "$0"; }
fail() { printf 'error: %s\n' "$1" >&2; exit 64; }

here=$(cd "$(dirname "$0")" && pwd)

pack() {
  local folder=$1 root
  root=$(dirname "$here")
  [ -e "$root/tfcollective/_runtime/native_library/libtfcollective.so" ] || fail "nothing is built yet to take along: make develop"
  mkdir -p "$folder"
  (cd "$root" && find tfcollective -name '*.py' -o -name '*.so' | tar -cf - -T -) | tar -xf - -C "$folder"
  (cd "$root/benchmarks" && find tfcollective_bench -name '*.py' | tar -cf - -T -) | tar -xf - -C "$folder"
  cp "$root/tests/gpu/gpu_matrix.py" "$here/gpu_check.sh" "$folder/"
  du -sh "$folder"
}

run() {
  local nccl
  [ -e "$here/gpu_matrix.py" ] || fail "this is not a packed folder: tools/gpu_check.sh pack FOLDER makes one, to run FOLDER/gpu_check.sh"
  if compgen -G "$here/libnccl.so.2.part.*" >/dev/null; then
    nccl=$(mktemp -d)
    trap 'rm -rf "$nccl"' EXIT
    cat "$here"/libnccl.so.2.part.* >"$nccl/libnccl.so.2"
    export TFCOLLECTIVE_NCCL=$nccl/libnccl.so.2
  elif [ -e "$here/libnccl.so.2" ]; then
    export TFCOLLECTIVE_NCCL=$here/libnccl.so.2
  fi
  PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} "${PYTHON:-python3}" "$here/gpu_matrix.py"
}

case ${1:-run} in
  pack) [ $# -ge 2 ] || fail "which folder? tools/gpu_check.sh pack FOLDER"; pack "$2" ;;
  run) run ;;
  -h | --help) usage ;;
  *) usage >&2; exit 64 ;;
esac
