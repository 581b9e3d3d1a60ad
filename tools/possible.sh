#!/usr/bin/env bash
# Prints why `make test-SUITE` cannot run on this machine, or nothing when it can. With a command: runs it where it can.
#
#   tools/possible.sh hosts|slurm|kubernetes|spark|yarn|kerberos [COMMAND...]
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin

# $1: what needs it
root_and_linux() {
  [ "$(uname -s)" = Linux ] || { echo "$1 need Linux"; exit 0; }
  [ "$(id -u)" = 0 ] || { echo "$1 need root"; exit 0; }
}

# Of each PROGRAM:PACKAGE.
programs() {
  for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null || { echo "${pair%%:*} is missing: install ${pair#*:}"; exit 0; }
  done
}

namespaces() {
  unshare --net --mount true 2>/dev/null || echo "this container may not make network namespaces"
}

java_17() {
  local java=${JAVA_HOME:+$JAVA_HOME/bin/java} version
  java=${java:-java}
  programs "$java:openjdk-17-jre-headless"
  version=$("$java" -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -n 1)
  [ "${version:-0}" -ge 17 ] || echo "Java 17 or later is needed, and $java is ${version:-of an unknown version}"
}

why_not() {
  case $1 in
    hosts)
      root_and_linux "network namespaces"
      programs ip:iproute2 tc:iproute2 ssh:openssh-client ssh-keygen:openssh-client sshd:openssh-server unshare:util-linux
      namespaces ;;
    slurm)
      root_and_linux "SLURM's nodes"
      programs munged:munge slurmctld:slurm-wlm slurmd:slurm-wlm srun:slurm-wlm ip:iproute2 unshare:util-linux
      namespaces ;;
    kubernetes)
      root_and_linux "network namespaces"
      programs ip:iproute2 unshare:util-linux setpriv:util-linux nsenter:util-linux chroot:coreutils
      namespaces ;;
    spark) java_17 ;;
    yarn)
      programs java:openjdk-17-jre-headless mvn:maven ;;
    kerberos)
      programs java:openjdk-17-jre-headless mvn:maven kinit:krb5-user krb5kdc:krb5-kdc kadmin.local:krb5-admin-server ;;
    *) echo "usage: tools/possible.sh hosts|slurm|kubernetes|spark|yarn|kerberos [COMMAND...]" >&2; exit 64 ;;
  esac
}

reason=$(why_not "${1:-}") || exit $?
if [ $# -gt 1 ] && [ -z "$reason" ]; then exec "${@:2}"; fi
[ -z "$reason" ] || echo "$([ $# = 1 ] || echo "skipped: ")$reason"
