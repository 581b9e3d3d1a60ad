"""Plans are forgotten when their last user has died, whatever the garbage collector interrupts."""

from __future__ import annotations

import gc
import threading

import pytest

pytest.importorskip("tensorflow")

from tfcollective.tensorflow._names import PlanUses


class Function:
    """Something that can be referred to weakly, and can be part of a cycle."""

    def __init__(self) -> None:
        self.itself = self


def test_a_plan_is_forgotten_with_its_last_user() -> None:
    forgotten: list[tuple[int, str]] = []
    uses = PlanUses(forgotten.append)
    first, second, other = Function(), Function(), Function()
    uses.add((0, "tape#0"), first)
    uses.add((0, "tape#0"), second)
    uses.add((1, "tape#0"), other)
    del first
    gc.collect()
    assert forgotten == []
    del second
    gc.collect()
    assert forgotten == [(0, "tape#0")]


def test_a_reused_plan_is_forgotten_again() -> None:
    forgotten: list[tuple[int, str]] = []
    uses = PlanUses(forgotten.append)
    for _ in range(2):
        function = Function()
        uses.add((0, "tape#0"), function)
        del function
        gc.collect()
    assert forgotten == [(0, "tape#0")] * 2


def test_a_user_dying_during_forgetting_is_noticed() -> None:
    forgotten: list[tuple[int, str]] = []
    late = [threading.Event()]  # dies without the garbage collector

    def forget(plan: tuple[int, str]) -> None:
        forgotten.append(plan)
        late.clear()  # on this thread, which holds the lock

    uses = PlanUses(forget)
    uses.add((0, "late"), late[0])
    early = Function()
    uses.add((0, "early"), early)
    del early
    gc.collect()
    assert forgotten == [(0, "early"), (0, "late")]


def test_many_threads_lose_nothing() -> None:
    forgotten: list[tuple[int, str]] = []
    uses = PlanUses(forgotten.append)

    def work(number: int) -> None:
        for count in range(300):
            uses.add((number, str(count)), Function())
            if count % 50 == 0:
                gc.collect()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert sorted(forgotten) == sorted((number, str(count)) for number in range(4) for count in range(300))
