"""A coordinator in a process of its own, and so many agents that join it at the same moment.

    python -m tfcollective_bench.scaling.joining AGENTS TIMEOUT

Every agent is a thread with a client and a connection of its own, so many threads a process that they do not hinder
each other: what the coordinator does for it is all that it does for an agent on another host. Prints one line of JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from statistics import median
from typing import Any, TypeAlias

from tfcollective._base.errors import InternalError, LaunchError
from tfcollective._base.job_keys import new_key
from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import Endpoint, World
from tfcollective._control.client.channel import Channel
from tfcollective._control.client.client import CoordinatorClient
from tfcollective_bench.scaling.coordinator import coordinator_of

__all__ = ["join_together", "main"]

#: Seconds of CLOCK_MONOTONIC.
_Span: TypeAlias = tuple[float, float]
_CREW = 50
_STACK_BYTES = 256 << 10


def join_together(agents: int, timeout: float) -> dict[str, Any]:
    """Measures the cost of `agents` agents joining one coordinator at once.

    Returns:
        ``agents``; ``seconds`` from the first call to the last return; ``median_wait`` of an agent (s);
        ``server_cpu`` (s); ``server_bytes`` of the coordinator's process before (``idle``) and after (``full``).

    Raises:
        ResourceExhaustedError: this user may not open so many files.
        LaunchError: an agent could not join.
    """
    key = new_key()
    with coordinator_of(key, agents, timeout, 2 * agents) as (endpoint, process):
        idle = process.memory_info().rss
        spans = _join_all(endpoint, key, agents, timeout)
        times = process.cpu_times()
        return {
            "agents": agents,
            "seconds": max(end for _, end in spans) - min(begin for begin, _ in spans),
            "median_wait": median(end - begin for begin, end in spans),
            "server_cpu": times.user + times.system,
            "server_bytes": {"idle": idle, "full": process.memory_info().rss},
        }


def _join_all(endpoint: Endpoint, key: bytes, agents: int, timeout: float) -> list[_Span]:
    """Returns when each agent began to join and when its join returned."""
    context = multiprocessing.get_context("fork")
    crews = [range(first, min(first + _CREW, agents)) for first in range(0, agents, _CREW)]
    start = context.Barrier(len(crews))
    pipes = []
    for crew in crews:
        ours, theirs = context.Pipe(duplex=False)
        arguments = (theirs, start, endpoint, key, crew, agents, timeout)
        context.Process(target=_crew, args=arguments, daemon=True).start()
        theirs.close()
        pipes.append(ours)
    try:
        found: list[tuple[World, list[_Span]]] = [pipe.recv() for pipe in pipes]
    except EOFError as error:
        raise LaunchError("some agents could not join; what they said stands above") from error
    if any(world != found[0][0] for world, _ in found):
        raise InternalError("the agents did not all get the same world")
    return [span for _, spans in found for span in spans]


def _crew(
    connection: Connection,
    start: Barrier,
    endpoint: Endpoint,
    key: bytes,
    members: range,
    agents: int,
    timeout: float,
) -> None:
    """Lets these agents join when all crews are ready; sends their world, and when each began and returned."""

    def all_ready() -> None:
        start.wait(timeout)

    ready = threading.Barrier(len(members), action=all_ready, timeout=timeout)

    def join(index: int) -> tuple[World, _Span]:
        with CoordinatorClient(endpoint, key, connections=1) as client:
            ready.wait()
            begin = time.monotonic()
            task = TaskKey("worker", index)
            world = Channel(client).join(
                task, size=agents, node=f"node-{index}", pid=index, address=f"address-{index}", timeout=timeout
            )
            return world, (begin, time.monotonic())

    threading.stack_size(_STACK_BYTES)
    with ThreadPoolExecutor(len(members)) as pool:
        results = list(pool.map(join, members))
    first = results[0][0]
    if len(first.members) != agents or any(world != first for world, _ in results):
        raise InternalError("the agents did not all get the same world")
    connection.send((first, [span for _, span in results]))


def main(arguments: Sequence[str]) -> None:
    """Measures; see the module."""
    print(json.dumps(join_together(int(arguments[0]), float(arguments[1]))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
