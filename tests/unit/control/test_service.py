"""What the service does between requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from time_limits import within

from tfcollective._base.clock import SYSTEM_CLOCK
from tfcollective._base.codec import decode, encode
from tfcollective._base.failures import ExitRecord
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._base.verdict import Rules
from tfcollective._cli.status import elastic_lines
from tfcollective._control.messages import (
    Exited,
    Join,
    Joined,
    JoinRequest,
    NodeLeaves,
    OutputPage,
    OutputPiece,
    ReadOutput,
    Request,
    Show,
    Status,
)
from tfcollective._control.serve.service import JobService
from tfcollective._control.snapshot import JobSnapshot
from tfcollective._control.state.events import Admit
from tfcollective._control.state.job import Job
from tfcollective._control.state.membership import Membership
from tfcollective._control.state.rounds import Bounds
from tfcollective._control.state.store import Store
from tfcollective._testing.clock import ManualClock


def test_a_reader_gets_output_of_several_nodes() -> None:
    async def read() -> OutputPage:
        service = JobService(Job("job", Membership([TaskKey("worker", 0)], 60), Store(1 << 20)), SYSTEM_CLOCK)

        async def ask(request: Request[Any]) -> bytes:
            return await service.answer(request.path, encode(request))

        reading = asyncio.create_task(ask(ReadOutput(0, within(20))))
        await asyncio.sleep(0)
        for number in range(3):
            await ask(Show(OutputPiece(f"node-{number}", "stdout", "a line\n")))
        return decode(await asyncio.wait_for(reading, within(20)), OutputPage, "the output")

    assert [piece.node for piece in asyncio.run(read()).pieces] == ["node-0", "node-1", "node-2"]


def test_a_launchers_pause_makes_no_rank_late() -> None:
    clock = ManualClock()
    looked = asyncio.Event()

    class Looked(Membership):
        def expire(self, now: float) -> Mapping[TaskKey, str]:
            looked.set()
            return super().expire(now)

    async def meet() -> list[Joined]:
        service = JobService(Job("job", Looked(workers(2), 60), Store(1 << 20)), clock)

        async def join(index: int) -> Joined:
            request = Join(JoinRequest(TaskKey("worker", index), 2, "node", index, "address"), within(20))
            return decode(await service.answer(Join.path, encode(request)), Joined, "the answer")

        keeping = asyncio.create_task(service.keep_time())
        first = asyncio.create_task(join(0))
        await asyncio.wait_for(looked.wait(), within(20))
        clock.advance(1000.0)
        looked.clear()  # it looks again by itself, and long before the start timeout
        await asyncio.wait_for(looked.wait(), within(20))
        answers = [await join(1), await asyncio.wait_for(first, within(20))]
        service.close()
        await keeping
        return answers

    assert all(one.world is not None for one in asyncio.run(meet()))


def test_tasks_of_one_decision_are_one_change() -> None:
    async def worlds() -> list[Joined]:
        clock = ManualClock()
        membership = Membership(workers(1), 60.0, bounds=Bounds(1, 1, 3, 10.0, changes=1))
        service = JobService(Job("job", membership, Store(1 << 20)), clock)

        async def ask(request: Request[Any]) -> bytes:
            return await service.answer(request.path, encode(request))

        async def join(*indices: int) -> list[Joined]:
            clock.advance(1.0)
            requests = (JoinRequest(TaskKey("worker", i), 1, "n", i, f"{i} at {clock.wall()}") for i in indices)
            answers = await asyncio.gather(*(ask(Join(one, 20.0)) for one in requests))
            return [decode(one, Joined, "the answer") for one in answers]

        await join(0)
        for index in (1, 2):
            service.apply(Admit(TaskKey("worker", index), 7))
        found = await join(1, 0) + await join(2, 1, 0)
        await ask(NodeLeaves((TaskKey("worker", 2),), "its slot is gone", 7))
        return found + await join(1, 0, 2)

    answers = asyncio.run(worlds())
    assert [one.world is not None for one in answers] == [True] * 7 + [False]
    assert answers[-1].leave == "its slot is gone"


def test_status_tells_how_the_world_has_changed() -> None:
    async def statuses() -> list[JobSnapshot]:
        clock = ManualClock(1000.0)
        membership = Membership(workers(4), 60.0, bounds=Bounds(1, 4, 5, 10.0))
        service = JobService(Job("job", membership, Store(1 << 20)), clock)

        async def ask(request: Request[Any]) -> bytes:
            return await service.answer(request.path, encode(request))

        async def join(*indices: int) -> None:
            requests = (JoinRequest(TaskKey("worker", i), 4, "n", i, f"{i} at {clock.wall()}") for i in indices)
            await asyncio.gather(*(ask(Join(one, 20.0)) for one in requests))

        await join(0, 1, 2, 3)
        clock.advance(1.0)
        await ask(Exited(ExitRecord("worker:1", 1, "n", 1, None, 9, 1.0)))
        clock.advance(0.5)
        await join(0, 2, 3)
        await ask(NodeLeaves((TaskKey("worker", 2), TaskKey("worker", 3)), "SIGTERM"))
        clock.advance(2.0)
        seen = [decode(await ask(Status()), JobSnapshot, "the status")]
        await join(2, 3, 0)
        return [*seen, decode(await ask(Status()), JobSnapshot, "the status")]

    first, second = asyncio.run(statuses())
    assert (len(first.members), first.min_size, first.max_size, first.pending) == (3, 1, 5, 3)
    assert first.leaving == {"worker:2": "SIGTERM", "worker:3": "SIGTERM"}
    (change,) = first.changes
    assert (change.generation, change.size, change.lost, change.joined) == (2, 3, (TaskKey("worker", 1),), ())
    assert (change.cause, change.seconds) == ("worker:1 was killed by SIGKILL", 0.5)
    assert (change.phases, first.calendar(change.at)) == ({"detect": 0.5, "agree": 0.0}, 1001.5)
    assert [first.rank_of(task) for task in first.tasks] == [0, None, 1, 2]
    assert (len(second.members), second.pending) == (1, 0)
    assert second.leavers == {"worker:2": "SIGTERM", "worker:3": "SIGTERM"}
    lines = list(elastic_lines(first))
    assert lines[0] == "3 ranks, 1 to 5 are possible; generation 3 follows when all have come"
    said = "generation 2: 3 ranks, without worker:1, after 0.50 s (detect 0.50, agree 0.00)"
    assert lines[1].endswith(f" {said}: worker:1 was killed by SIGKILL")
    assert lines[2:] == ["  worker:2 is to leave: SIGTERM", "  worker:3 is to leave: SIGTERM"]
    assert next(elastic_lines(replace(first, members=first.members[:1]))).startswith("1 rank, 1 to 5 are possible")
    assert next(elastic_lines(replace(first, max_size=None))).startswith("3 ranks, 1 or more are possible")
    assert not list(elastic_lines(replace(first, rules=Rules())))
