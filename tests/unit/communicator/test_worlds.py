"""Worlds of several ranks in one process: one thread a rank, as the C interface allows."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from tfcollective._base.errors import (
    CollectiveAbortedError,
    CollectiveCancelledError,
    CollectiveError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    PeerLostError,
    ResourceExhaustedError,
    StateError,
)
from tfcollective._base.topology import PortRange
from tfcollective._runtime import communicator as c
from tfcollective._runtime.communicator import Cancellation, CommunicatorOptions, Listener, NativeCommunicator

KEY = b"0123456789abcdef"
QUICK = CommunicatorOptions(connect_timeout=20, op_timeout=20)


def run_world(
    size: int, work: Callable[[NativeCommunicator], object], options: CommunicatorOptions = QUICK
) -> list[object]:
    """What `work` returned, or the CollectiveError that it raised, on every rank."""
    listeners = [Listener("127.0.0.1", "node") for _ in range(size)]
    addresses = [listener.address for listener in listeners]
    results: list[object] = [None] * size

    def run(rank: int) -> None:
        try:
            world = NativeCommunicator.connect(
                listeners[rank], rank=rank, addresses=addresses, key=KEY, options=options
            )
            results[rank] = work(world)
            world.close(5)
        except CollectiveError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return results


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("size", [2, 3])
def test_collectives(size: int, transport: str) -> None:
    def work(world: NativeCommunicator) -> None:
        mine = np.arange(5.0) + world.rank
        everyone = [np.arange(5.0) + r for r in range(size)]
        np.testing.assert_array_equal(world.allreduce(mine, c.Sum), sum(everyone))
        np.testing.assert_array_equal(world.allreduce(mine), sum(everyone) / size)
        np.testing.assert_array_equal(world.allreduce(mine, c.Max), everyone[-1])
        np.testing.assert_array_equal(
            world.allgather(mine[: world.rank]), np.concatenate([e[:r] for r, e in enumerate(everyone)])
        )
        np.testing.assert_array_equal(world.broadcast(mine, size - 1), everyone[-1])
        rows = np.array_split(sum(everyone), size)[world.rank]
        np.testing.assert_array_equal(world.reducescatter(mine, c.Sum), rows)
        got, counts = world.alltoall(np.repeat(float(world.rank), size * 2), [2] * size)
        np.testing.assert_array_equal(got, np.repeat(np.arange(float(size)), 2))
        assert counts == [2] * size
        world.barrier()
        info = world.info()
        assert (info.rank, info.size, info.local_size) == (world.rank, size, size)
        assert info.uses_shared_memory == (transport == "auto")
        assert (info.link_latency > 0, info.link_bandwidth > 0) == (transport == "tcp", transport == "tcp")

    options = CommunicatorOptions(connect_timeout=20, op_timeout=20, transport=transport)
    assert run_world(size, work, options) == [None] * size


@pytest.mark.parametrize("probes", [False, True])
def test_the_link_is_measured_only_on_request(probes: bool) -> None:
    links: dict[int, tuple[float, float]] = {}

    def work(world: NativeCommunicator) -> object:
        links[world.rank] = (world.info().link_latency, world.info().link_bandwidth)
        return world.info().completed

    options = CommunicatorOptions(connect_timeout=20, op_timeout=20, transport="tcp", link_probe=probes)
    assert run_world(3, work, options) == [0, 0, 0]
    assert len(set(links.values())) == 1
    assert all(min(link) > 0 if probes else link == (0.0, 0.0) for link in links.values())


def test_ranks_that_disagree_are_shown_to_each_other() -> None:
    results = run_world(2, lambda world: world.allreduce(np.ones(3 + world.rank)))
    for error in results:
        assert isinstance(error, CollectiveMismatchError)
        assert "rank 0" in str(error)
        assert "rank 1" in str(error)


def test_abort_tells_the_others_why() -> None:
    def work(world: NativeCommunicator) -> object:
        if world.rank == 1:
            world.abort("ValueError: rotten")
        return world.barrier()

    reported, aborter = run_world(2, work)
    assert isinstance(reported, CollectiveAbortedError)
    assert reported.peer == 1
    assert "rotten" in str(reported)
    assert isinstance(aborter, CollectiveCancelledError)


def test_a_rank_that_leaves_is_missed() -> None:
    lost, left = run_world(2, lambda world: world.barrier() if world.rank == 0 else None)
    assert isinstance(lost, PeerLostError)
    assert lost.peer == 1
    assert left is None


def test_a_dead_world_says_what_killed_it() -> None:
    def work(world: NativeCommunicator) -> object:
        if world.rank == 1:
            return None
        with pytest.raises(PeerLostError):
            world.barrier()
        return world.failure()

    failure, _ = run_world(2, work)
    assert isinstance(failure, PeerLostError)


def test_deadlines_name_the_missing() -> None:
    done = threading.Event()

    def work(world: NativeCommunicator) -> object:
        if world.rank == 1:
            done.wait(20)
            return None
        try:
            return world.barrier(timeout=0.3)
        finally:
            done.set()

    late = run_world(2, work)[0]
    assert isinstance(late, CollectiveTimeoutError)
    assert "rank 1" in str(late)


def test_a_listener_serves_once() -> None:
    listener = Listener("127.0.0.1", "node")
    listener.close()
    listener.close()
    with pytest.raises(StateError, match="closed"):
        NativeCommunicator.connect(listener, rank=0, addresses=["x"], key=KEY)


def test_a_cancelled_connect_says_so() -> None:
    cancellation = Cancellation()
    with Listener("127.0.0.1", "node") as absent:
        listener = Listener("127.0.0.1", "node")
        addresses = [listener.address, absent.address]
        cancellation.request("rank 1 was killed")
        with pytest.raises(CollectiveCancelledError, match="rank 1 was killed"):
            NativeCommunicator.connect(listener, rank=0, addresses=addresses, key=KEY, cancellation=cancellation)


# The handler runs after all those that are registered later: what ends with the process has ended by then.
LEFT_CONNECTING = """
import atexit, threading
def wait():
    connecting.join(20)
    print(errors, flush=True)
atexit.register(wait)
from tfcollective._runtime.communicator import Cancellation, CommunicatorOptions, Listener, NativeCommunicator
listener, absent = (Listener("127.0.0.1", "node") for _ in range(2))
addresses, cancellation, errors = [listener.address, absent.address], Cancellation(), []
options = CommunicatorOptions(connect_timeout=1)
def connect():
    try:
        NativeCommunicator.connect(
            listener, rank=0, addresses=addresses, key=bytes(16), options=options, cancellation=cancellation
        )
    except Exception as error:
        errors.append(error)
connecting = threading.Thread(target=connect, daemon=True)
connecting.start()
"""


def test_a_process_may_end_while_it_connects() -> None:
    environ = {**os.environ, "MALLOC_PERTURB_": "165"}  # what is freed is overwritten
    command = [sys.executable, "-c", LEFT_CONNECTING]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert "rank 1 did not connect" in done.stdout, done.stderr


def test_another_key_is_refused() -> None:
    listeners = [Listener("127.0.0.1", "node") for _ in range(2)]
    addresses = [listener.address for listener in listeners]
    options = CommunicatorOptions(connect_timeout=1.0)
    errors: list[object] = []

    def run(rank: int) -> None:
        key = KEY if rank == 0 else KEY[::-1]
        try:
            NativeCommunicator.connect(listeners[rank], rank=rank, addresses=addresses, key=key, options=options)
        except CollectiveError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(errors) == 2


@pytest.mark.parametrize("size", [2, 3])
def test_repeated_calls_still_find_who_disagrees(size: int) -> None:
    def work(world: NativeCommunicator) -> None:
        for step in range(50):
            got = world.allreduce(np.full(3, world.rank + step), c.Sum, name="step")
            np.testing.assert_array_equal(got, np.full(3, size * step + size * (size - 1) // 2))
        world.allreduce(np.ones(3 + (world.rank == 0), int), c.Sum, name="step")

    for error in run_world(size, work):
        assert isinstance(error, CollectiveMismatchError)
        assert "int64[4]" in str(error) and "int64[3]" in str(error)


def test_a_listener_takes_a_port_that_is_allowed() -> None:
    def port(one: Listener) -> int:
        return int(one.address.split(";")[1].rpartition(":")[2])

    with Listener("127.0.0.1", "node") as first:
        taken = port(first)
        with pytest.raises(ResourceExhaustedError, match=f"bind to 127.0.0.1, ports {taken}-{taken}"):
            Listener("127.0.0.1", "node", ports=PortRange(taken, taken))
        high = min(taken + 400, 65535)
        with Listener("127.0.0.1", "node", ports=PortRange(taken - 400, high)) as second:
            assert port(second) in {*range(taken - 400, high + 1)} - {taken}
