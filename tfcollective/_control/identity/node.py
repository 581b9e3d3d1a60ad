"""The id of this node, and the process that has started this one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tfcollective._base.errors import ConfigError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK_NAMESPACE = Path("/proc/self/ns/net")


def node_id(boot_id: str, network_namespace: int) -> str:
    """A short text that is equal for processes of one running kernel and one network namespace.

    Not the host name: containers of one host may share that, and hosts may share a name.
    """
    return hashlib.sha256(f"{boot_id.strip()}/{network_namespace}".encode()).hexdigest()[:16]


def current_node_id(override: str | None = None) -> str:
    """The id of the node that this process runs on, or ``override`` when given."""
    if override:
        return override
    try:
        return node_id(_BOOT_ID.read_text("ascii"), _NETWORK_NAMESPACE.stat().st_ino)
    except OSError as error:
        raise ConfigError(
            f"cannot find out the id of this node ({error}): set TFCOLLECTIVE_NODE_ID to its name"
        ) from error


_PARENT_FIELD, _START_FIELD = 1, 19  # behind the name, counted from the state on; see proc(5)
_MOST_NAME_BYTES = 15  # the kernel keeps this much of a program's name


def ancestor(names: Collection[str]) -> str | None:
    """The nearest ancestor of this process that runs a program of one of these names; None if there is none.

    Its number and its start time, as a text: equal for all processes that it has started, and for no others of this
    boot.
    """
    known = {name[:_MOST_NAME_BYTES] for name in names}
    return next((f"{one.pid}-{one.started}" for one in ancestors() if one.program in known), None)


@dataclass(frozen=True)
class Process:
    """A process of this machine: its number, the program that it runs, and when it was started, in the kernel's
    ticks."""

    pid: int
    program: str
    started: str


def ancestors() -> Iterator[Process]:
    """The processes by which this one has been started, the nearest first, as far as they can be seen."""
    pid = os.getppid()
    while pid > 0:
        try:
            text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        except OSError:
            return
        head, _, rest = text.rpartition(")")  # the name may hold anything
        fields = rest.split()
        yield Process(pid, head.partition("(")[2], fields[_START_FIELD])
        pid = int(fields[_PARENT_FIELD])
