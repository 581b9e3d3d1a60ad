#!/usr/bin/env bash
# pytest.sh ENVIRONMENT ARGUMENT...
# Runs the pytest of .venv/ENVIRONMENT in a folder of its own, so that what is installed there is tested and not the tree
# that this stands in. Arguments that are paths of tests are the repository's; those in $PYTEST_ARGS come last.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd) environment=$1
eval "set -- $(printf '%q ' "${@:2}") ${PYTEST_ARGS-}"
arguments=()
for argument in "$@"; do
  case $argument in
    tests | tests/*) argument=$root/$argument ;;
    --ignore=tests/* | --ignore-glob=tests/*) argument=${argument%%=*}=$root/${argument#*=} ;;
  esac
  arguments+=("$argument")
done
printf '\n\033[1m== pytest in .venv/%s: %s\033[0m\n' "$environment" "$*"
folder=$root/build/tests-$environment
mkdir -p "$folder" && cd "$folder"
exec "$root/.venv/$environment/bin/python" -m pytest -c "$root/pyproject.toml" --rootdir "$root" -o cache_dir="$folder/cache" \
  "${arguments[@]}" </dev/null
