"""A result that is found again after the way back to the last commit."""

from __future__ import annotations

import pytest

from tfcollective.elastic._kept import KeptResult


@pytest.fixture
def kept() -> KeptResult:
    made = KeptResult()
    made.begin()
    return made


def test_results_are_found_by_their_order(kept: KeptResult) -> None:
    assert [kept.next_place() for _ in range(3)] == [0, 1, 2]
    kept.keep(1, "second")
    kept.begin()
    assert [kept.at(kept.next_place() or 0) for _ in range(3)] == [None, "second", None]


def test_a_later_result_stays(kept: KeptResult) -> None:
    kept.keep(1, "second")
    kept.keep(0, "first again")
    assert (kept.at(0), kept.at(1)) == (None, "second")


def test_a_commit_forgets_it(kept: KeptResult) -> None:
    kept.next_place()
    kept.keep(0, "first")
    kept.forget()
    assert kept.at(0) is None
    assert kept.next_place() == 0


def test_nothing_is_kept_outside_of_a_run(kept: KeptResult) -> None:
    kept.keep(0, "first")
    kept.close()
    assert kept.next_place() is None
    assert kept.at(0) is None
