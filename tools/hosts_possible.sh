#!/usr/bin/env bash
# Prints why network namespaces cannot be hosts with sshd here, or nothing when they can.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin
[ "$(uname -s)" = Linux ] || { echo "network namespaces need Linux"; exit 0; }
[ "$(id -u)" = 0 ] || { echo "network namespaces need root"; exit 0; }
for pair in ip:iproute2 tc:iproute2 ssh:openssh-client ssh-keygen:openssh-client sshd:openssh-server unshare:util-linux; do
  command -v "${pair%%:*}" >/dev/null || { echo "${pair%%:*} is missing: install ${pair#*:}"; exit 0; }
done
unshare --net --mount true 2>/dev/null || echo "this container may not make network namespaces"
