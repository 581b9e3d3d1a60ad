"""A change wakes those that wait for its topic, and no others."""

from __future__ import annotations

import asyncio

import pytest
from time_limits import within

from tfcollective._control.serve.wakeups import Wakeups


def test_a_change_wakes_those_that_wait_for_it() -> None:
    async def look() -> None:
        wakeups, woken = Wakeups(), []

        async def wait(name: str, *topics: object) -> None:
            await wakeups.wait(topics, within(60))
            woken.append(name)

        waits = [
            asyncio.create_task(wait(name, *topics)) for name, *topics in (("1", "a"), ("2", "b"), ("3", "a", "b"))
        ]
        await asyncio.sleep(0)
        wakeups.wake("a")
        wakeups.wake("nothing")
        await asyncio.gather(waits[0], waits[2])
        assert sorted(woken) == ["1", "3"]
        wakeups.wake_all()
        await waits[1]
        assert wakeups._waiting == {}

    asyncio.run(look())


def test_a_wait_that_is_over_leaves_nothing() -> None:
    async def look() -> None:
        wakeups = Wakeups()
        await wakeups.wait(("a", "b"), 0.01)
        assert wakeups._waiting == {}

    asyncio.run(look())


@pytest.mark.parametrize("number", [1, 64, 200, 1000])
def test_many_waiters_are_woken_in_turns(number: int) -> None:
    async def check() -> tuple[int, int]:
        wakeups, woken = Wakeups(), []

        async def wait(number: int) -> None:
            await wakeups.wait(("a",), within(60))
            woken.append(number)

        waiting = [asyncio.create_task(wait(number)) for number in range(number)]
        await asyncio.sleep(0)
        wakeups.wake("a")
        await asyncio.sleep(0)
        first = len(woken)
        await asyncio.wait_for(asyncio.gather(*waiting), within(60))
        return first, len(woken)

    first, all_of_them = asyncio.run(check())
    assert all_of_them == number
    assert first < number or number <= 64
