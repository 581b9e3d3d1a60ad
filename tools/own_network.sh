#!/usr/bin/env bash
# Runs a command in a network of its own, with nothing in it but loopback, so that it can build network namespaces as
# hosts (tools/netlab.sh) beside others that do. Needs Linux, root, and unshare (Debian's util-linux).
#
#   tools/own_network.sh COMMAND...
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: tools/own_network.sh COMMAND..." >&2; exit 64; }
mkdir -p /run/netns /etc/netns
# ip keeps the names of namespaces in /run/netns, and what they see of /etc in /etc/netns: both are ours alone.
exec unshare --net --mount bash -c '
  set -euo pipefail
  mount -t tmpfs none /run/netns
  mount -t tmpfs none /etc/netns
  ip link set lo up
  exec "$@"' own_network "$@"
