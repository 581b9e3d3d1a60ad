"""The checks of ``tfcollective check`` on this host: limits that a container or administrator may have set too low."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from pathlib import Path

from tfcollective._base.clock import on_thread
from tfcollective._base.machine.control_groups import PROC, memory_limit
from tfcollective._base.machine.cores import available_cores
from tfcollective._base.settings import environ_snapshot
from tfcollective._base.timing import TIMING
from tfcollective._launch.launcher import Finding

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_MIB = 1 << 20
_GIB = 1 << 30
_PROBE_BYTES = _MIB
# Below these a job fails sooner or later: a rank with TensorFlow takes some 500 MiB, and dozens of threads and files.
_LEAST_MEMORY = 512 * _MIB
_LEAST_FILES = 256
_LEAST_THREADS = 256
_LEAST_ADDRESS_SPACE = 8 * _GIB
# NCCL keeps 10 MB or so there for each pair of GPUs; Docker gives 64 MiB.
_ENOUGH_FOR_NCCL = _GIB


def _addresses(name: str) -> list[str]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@dataclass(frozen=True)
class Host:
    """The host to check, or a replacement in a test."""

    environ: Mapping[str, str] = field(default_factory=environ_snapshot)
    proc: Path = PROC
    shm: Path = Path("/dev/shm")  # noqa: S108
    make_memory: Callable[[str], int] = os.memfd_create
    resolve: Callable[[str], list[str]] = _addresses
    limit: Callable[[int], tuple[int, int]] = resource.getrlimit


def host_findings(host: Host | None = None) -> Iterator[Finding]:
    """Yields one finding after the other."""
    host = host or Host()
    for look in (c_library, shared_memory, dev_shm, container_limits, host_name, proxies, user_limits):
        yield look(host)


def c_library(_host: Host) -> Finding:
    """The wheels are for glibc; musl, as in Alpine, has another interface."""
    name = "C library"
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION")
    except (OSError, ValueError):
        version = None
    if not version:
        remedy = "use a system or an image with glibc, for example Debian or Ubuntu; Alpine has musl"
        return Finding(name, False, "this is not glibc", remedy)
    return Finding(name, True, version)


def shared_memory(host: Host) -> Finding:
    """Ranks of one host exchange data through memory that memfd_create makes: seccomp and sysctl may forbid it."""
    name = "shared memory"
    seccomp = {"1": ", strict seccomp", "2": ", a seccomp filter is active"}.get(_status(host.proc, "Seccomp"), "")
    try:
        memory = host.make_memory("tfcollective-check")
        try:
            os.posix_fallocate(memory, 0, _PROBE_BYTES)
        finally:
            os.close(memory)
    except OSError as error:
        reason = errno.errorcode.get(error.errno or 0, "")
        return Finding.note(name, f"memfd_create: {error.strerror} ({reason}){seccomp}; {_SLOWER}", _MEMORY_REMEDY)
    return Finding(name, True, f"memfd_create works{seccomp}")


_SLOWER = "data between ranks of this host goes over TCP, which is slower"
_MEMORY_REMEDY = (
    "allow memfd_create in the container's seccomp profile, set the sysctl vm.memfd_noexec to 0 or 1, or raise the "
    "container's memory limit"
)


def dev_shm(host: Host) -> Finding:
    """NCCL's memory between GPUs of one host; tfcollective itself does not use it."""
    name = str(host.shm)
    remedy = "docker run --shm-size=1g or --ipc=host; in Kubernetes an emptyDir with medium: Memory, mounted there"
    try:
        usage = shutil.disk_usage(host.shm)
    except OSError as error:
        return Finding.note(name, f"{error.strerror}; NCCL needs it, for GPUs", remedy)
    detail = f"{_size(usage.free)} of {_size(usage.total)} free"
    if usage.free >= _ENOUGH_FOR_NCCL:
        return Finding(name, True, detail)
    return Finding.note(name, f"{detail}; NCCL may need more, for GPUs", remedy)


def container_limits(host: Host) -> Finding:
    """Checks what control groups leave of the machine: a rank that takes more memory is killed."""
    name = "cores and memory"
    cores = f"{available_cores()} of {os.cpu_count()} cores"
    memory = memory_limit(host.proc)
    if memory is None:
        return Finding(name, True, f"{cores}, no memory limit")
    left = max(0, memory.limit - memory.used)
    detail = f"{cores}, {_size(left)} of {_size(memory.limit)} left by the control group"
    if memory.limit < _LEAST_MEMORY:
        return Finding(name, False, detail, "raise the memory limit of the container: a rank takes 0.5 GiB or more")
    return Finding(name, True, detail)


def host_name(host: Host) -> Finding:
    """Checks this host's name, which only jobs on several hosts need: it must not be unknown, or loopback."""
    own = socket.gethostname()
    try:
        addresses = on_thread(lambda: host.resolve(own), "tfcollective-resolve").result(TIMING.check_name)
    except (OSError, FutureTimeoutError) as error:
        reason = str(error) or f"no answer within {TIMING.check_name:g} s"
        remedy = f"add a line 'ADDRESS {own}' to /etc/hosts, with the address by which other hosts reach this one"
        return Finding.note(
            "host name", f"{own} does not resolve, which jobs on several hosts may need: {reason}", remedy
        )
    detail = f"{own} is {', '.join(addresses)}"
    if all(address.startswith("127.") or address == "::1" for address in addresses):
        detail += "; programs that look it up find loopback, tfcollective takes the address of the default route"
    return Finding("host name", True, detail)


def proxies(host: Host) -> Finding:
    """Connections of a job never go through a proxy; those of pip, YARN's clients and object stores do."""
    found = sorted(name for name in host.environ if name.lower() in PROXIES and host.environ[name])
    if not found:
        return Finding("proxies", True, "none")
    return Finding("proxies", True, f"{', '.join(found)}: not used between the processes of a job")


def user_limits(host: Host) -> Finding:
    """The limits of ulimit that end jobs."""
    limits = (
        ("open files", "-n", resource.RLIMIT_NOFILE, _LEAST_FILES, 1, ""),
        ("processes and threads", "-u", resource.RLIMIT_NPROC, _LEAST_THREADS, 1, ""),
        ("address space", "-v", resource.RLIMIT_AS, _LEAST_ADDRESS_SPACE, _MIB, " MiB"),
    )
    details, remedies = [], []
    for name, option, number, least, unit, unit_name in limits:
        hard = host.limit(number)[1]
        unlimited = hard == resource.RLIM_INFINITY
        details.append(f"{name} {'unlimited' if unlimited else f'{hard // unit}{unit_name}'}")
        if not unlimited and hard < least:
            remedies.append(
                f"ulimit -H{option[1]} says {hard // unit}{unit_name}, {least // unit}{unit_name} is needed"
            )
    remedy = f"raise the limit in /etc/security/limits.conf, or of the container or service: {'; '.join(remedies)}"
    return Finding("limits of this user", not remedies, ", ".join(details), remedy if remedies else "")


def _status(proc: Path, key: str) -> str:
    try:
        lines = (proc / "status").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{key}:")), "")


def _size(number: int) -> str:
    return f"{number / _GIB:.1f} GiB" if number >= _GIB else f"{number // _MIB} MiB"
