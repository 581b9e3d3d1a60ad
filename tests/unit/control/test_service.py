"""What the service does between requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from manual_clock import ManualClock
from time_limits import within

from tfcollective.clock import SYSTEM_CLOCK
from tfcollective.codec import decode, encode
from tfcollective.control.messages import Join, Joined, ReadOutput, Show, path_of
from tfcollective.control.output_log import OutputPage, OutputPiece
from tfcollective.control.rounds import JoinRequest
from tfcollective.control.service import JobService
from tfcollective.control.state import Membership
from tfcollective.control.store import Store
from tfcollective.tasks import TaskKey, workers


def test_a_reader_gets_the_output_of_several_nodes_together() -> None:
    async def read() -> OutputPage:
        service = JobService("job", Membership([TaskKey("worker", 0)], 60), Store(1 << 20), SYSTEM_CLOCK)

        async def ask(request: object) -> bytes:
            return await service.answer(path_of(type(request)), encode(request))

        reading = asyncio.create_task(ask(ReadOutput(0, within(20))))
        await asyncio.sleep(0)
        for number in range(3):
            await ask(Show(OutputPiece(f"node-{number}", "stdout", "a line\n")))
        return decode(await asyncio.wait_for(reading, within(20)), OutputPage, "the output")

    assert [piece.node for piece in asyncio.run(read()).pieces] == ["node-0", "node-1", "node-2"]


def test_time_in_which_the_launcher_was_stopped_is_no_lateness_of_ranks() -> None:
    clock = ManualClock()
    looked = asyncio.Event()

    class Looked(Membership):
        def expire(self, now: float) -> Mapping[TaskKey, str]:
            looked.set()
            return super().expire(now)

    async def meet() -> list[Joined]:
        service = JobService("job", Looked(workers(2), 60), Store(1 << 20), clock)

        async def join(index: int) -> Joined:
            request = Join(JoinRequest(TaskKey("worker", index), 2, "node", index, "address"), within(20))
            return decode(await service.answer(path_of(Join), encode(request)), Joined, "the answer")

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
