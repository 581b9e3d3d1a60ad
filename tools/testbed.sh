#!/usr/bin/env bash
# Network namespaces as hosts, each with one link to one bridge, shaped in both directions by `tc tbf`.
#
#   tools/testbed.sh up N RATE       N hosts at RATE: 1gbit, 10gbit, 100mbit, none
#   tools/testbed.sh status          what there is, and the processes in it
#   tools/testbed.sh exec I COMMAND  runs COMMAND on host I (1 to N)
#   tools/testbed.sh down            ends the processes in it and takes it away
#
# Needs Linux, root, and ip and tc (Debian's iproute2). Each command may be repeated.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$("$root/tools/find_python.sh" 3.10 3.14)}
[ -n "$python" ] || { echo "error: Python 3.10 or newer is needed (PYTHON=...)" >&2; exit 1; }
PYTHONPATH=$root:$root/benchmarks${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m tfcollective_bench.testbed "$@"
