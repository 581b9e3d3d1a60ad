#!/usr/bin/env bash
# `make test-all`: the suites beyond .ci/run, one after the other. A suite whose needs are not met is skipped, and the
# reason is printed. Takes about two hours on two cores where all of them can run.
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null

skipped=()
skip() { skipped+=("$1: $2"); echo "== skipped $1: $2"; }

# $1: suite
run_where_possible() {
  local reason
  reason=$(tools/possible.sh "$1")
  if [ -z "$reason" ]; then make "test-$1"; else skip "$1" "$reason"; fi
}

can_sanitize() {
  local folder
  folder=$(mktemp -d)
  echo 'int main() { return 0; }' >"$folder/probe.cc"
  "${CXX:-c++}" "-fsanitize=$1" "$folder/probe.cc" -o "$folder/probe" >/dev/null 2>&1 && "$folder/probe" >/dev/null 2>&1
  local result=$?
  rm -rf "$folder"
  return $result
}

make test-long
make test-elastic
make test-second-device

for sanitizer in address:asan thread:tsan; do
  suite=test-native-${sanitizer#*:}
  if can_sanitize "${sanitizer%:*}"; then
    make "$suite"
    rm -rf "build/${sanitizer#*:}"
  else
    skip "$suite" "the compiler cannot link and run programs with -fsanitize=${sanitizer%:*} here"
  fi
done

if [ -n "$(for minor in 10 12 13; do tools/find_python.sh 3.$minor 3.$minor "python3.$minor"; done)" ]; then
  make test-pythons
  rm -rf .venv/alone-*
else
  skip test-pythons "none of python3.10, python3.12 and python3.13 is here"
fi

if make .venv/foreign.made; then
  make test-foreign
else
  skip test-foreign "JAX, Keras and torch cannot be installed here"
fi

for suite in hosts slurm kubernetes spark yarn kerberos; do run_where_possible "$suite"; done

echo "== all suites that can run here passed"
for line in "${skipped[@]+"${skipped[@]}"}"; do echo "   skipped $line"; done
