#!/bin/sh
# make_venv.sh PYTHON DIRECTORY: makes a virtual environment, or says which package is missing for it.
set -eu
python=$1 directory=$2
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  echo "error: $python has no 'venv' module. Install it and try again:" >&2
  echo "  Debian, Ubuntu:  apt-get install python$version-venv" >&2
  echo "  Fedora:          dnf install python$version" >&2
  exit 1
fi
[ -x "$directory/bin/python" ] || "$python" -m venv "$directory"
