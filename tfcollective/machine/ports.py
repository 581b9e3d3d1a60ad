"""Ports of this machine for servers that take a port and no socket, as TensorFlow's do.

They cannot be held for them: they are chosen below the range from which Linux gives out ports by itself, where no
process gets one by accident between our choice and the server's start.
"""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Sequence

from tfcollective.errors import LaunchError
from tfcollective.tasks import TaskKey
from tfcollective.topology import Endpoint

__all__ = ["choose_endpoints", "free_ports"]

_PORTS = range(20000, 32000)


def choose_endpoints(tasks: Sequence[TaskKey], host: str) -> dict[TaskKey, Endpoint]:
    """A port of ``host``, an address of this machine, for each task: free now.

    Raises LaunchError when there are not enough.
    """
    return {task: Endpoint(host, port) for task, port in zip(tasks, free_ports(host, len(tasks)), strict=True)}


def free_ports(host: str, count: int) -> list[int]:
    """So many ports of ``host``, an address of this machine, that are free now. Raises LaunchError."""
    # Not always the same ones: jobs start side by side, and may have seeded the common generator alike.
    ports = random.SystemRandom().sample(_PORTS, len(_PORTS))
    found = list(itertools.islice((port for port in ports if _is_free(host, port)), count))
    if len(found) < count:
        raise LaunchError(f"there are no {count} free ports on {host} for TF_CONFIG")
    return found


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
