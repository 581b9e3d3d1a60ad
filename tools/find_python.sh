#!/bin/sh
# find_python.sh OLDEST NEWEST [CANDIDATE...]
# Prints the first candidate that runs and whose version lies between the two (as in 3.10 3.13); nothing if none does.
oldest=${1#3.} newest=${2#3.}
shift 2
[ $# -gt 0 ] || set -- python3.11 python3.12 python3.10 python3.13 python3
for candidate in "$@"; do
  if "$candidate" -c "import sys; sys.exit(not ((3, $oldest) <= sys.version_info[:2] <= (3, $newest)))" \
      </dev/null >/dev/null 2>&1; then
    echo "$candidate"
    exit 0
  fi
done
