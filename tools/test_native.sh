#!/usr/bin/env bash
# test_native.sh FOLDER PRESET CMAKE-OPTION... [-- CTEST-OPTION...]: builds the native tests of a preset in FOLDER and runs them.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 preset=$2 options=()
shift 2
while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
[ $# = 0 ] || shift
printf '\n\033[1m== native tests in %s\033[0m\n' "$folder"
tools/ensure_googletest.sh
PATH=$PWD/.venv/tools/bin:$PATH jobs=$(nproc)
mkdir -p build
cmake --preset "$preset" -B "$folder" ${options[@]+"${options[@]}"} >"$folder.log" || { cat "$folder.log"; exit 1; }
cmake --build "$folder" --parallel "$jobs"
# Every other test waits for a deadline: two a core.
exec ctest --test-dir "$folder" --output-on-failure --no-tests=error --progress --parallel $((2 * jobs)) "$@" </dev/null
