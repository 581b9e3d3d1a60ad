"""What the service does between requests."""

from __future__ import annotations

import asyncio

from time_limits import within

from tfcollective.clock import SYSTEM_CLOCK
from tfcollective.codec import decode, encode
from tfcollective.control.messages import ReadOutput, Show, path_of
from tfcollective.control.output_log import OutputPage, OutputPiece
from tfcollective.control.service import JobService
from tfcollective.control.state import Membership
from tfcollective.control.store import Store
from tfcollective.tasks import TaskKey


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
