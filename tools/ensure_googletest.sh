#!/bin/sh
# Makes sure that GoogleTest is there: from the system's package manager when root, else says how to install it.
set -eu
compiles() {
  printf '#include <gtest/gtest.h>\n' | ${CXX:-c++} -std=c++17 -E -x c++ - >/dev/null 2>&1
}
compiles && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "GoogleTest is missing: installing libgtest-dev"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq libgtest-dev </dev/null
  compiles && exit 0
fi
echo "error: the native tests need GoogleTest (gtest/gtest.h). Install it and try again:" >&2
echo "  Debian, Ubuntu:  apt-get install libgtest-dev" >&2
echo "  Fedora:          dnf install gtest-devel" >&2
exit 1
