#!/usr/bin/env bash
# make_venv.sh PYTHON DIRECTORY [--on DIRECTORY] [GROUP...] [-- REQUIREMENT...]
# Makes a virtual environment, or says which package is missing for it. It sees what is in that of --on, and comes first.
# GROUPs are those of tools/requirements.py.
set -euo pipefail
python=$1 directory=$2
shift 2
[ -n "$python" ] || { echo "error: $directory needs a Python from 3.10 to 3.13, and none was found (set PYTHON=...)" >&2; exit 1; }
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  echo "error: $python has no 'venv' module. Install it and try again:" >&2
  echo "  Debian, Ubuntu:  apt-get install python$version-venv" >&2
  echo "  Fedora:          dnf install python$version" >&2
  exit 1
fi
[ -x "$directory/bin/python" ] || "$python" -m venv "$directory"
if [ "${1-}" = --on ]; then
  packages='import sysconfig; print(sysconfig.get_path("purelib"))'
  "$2/bin/python" -c "$packages" >"$("$directory/bin/python" -c "$packages")/$(basename "$2").pth"
  shift 2
fi
[ $# -gt 0 ] || exit 0
printf '\n\033[1m== environment %s: %s\033[0m\n' "$directory" "$*"
groups=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do groups+=("$1"); shift; done
[ $# = 0 ] || shift
# Of what pip prints, the files that it takes, so that an installation of minutes shows that it goes on.
"$directory/bin/python" "$(dirname "$0")/requirements.py" "${groups[@]}" |
  "$directory/bin/python" -m pip install --disable-pip-version-check --progress-bar off -r /dev/stdin "$@" |
  sed --unbuffered --quiet --regexp-extended 's/^ *(Downloading|Using cached) ([^ ]*\.(whl|gz))( .*|$)/  \2\4/p'
