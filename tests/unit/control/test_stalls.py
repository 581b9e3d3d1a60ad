"""Which ranks others wait for follows from heartbeats alone."""

import pytest

from tfcollective._base.tasks import TaskKey
from tfcollective._control.state.stalls import Stall, Stalls


def task(index):
    return TaskKey("worker", index)


MEMBERS = (task(0), task(1), task(2))
WAITS, COMPUTES = {"completed": 5, "pending": 1}, {"completed": 5, "pending": 0}


@pytest.fixture
def stalls():
    """Ranks 0 and 2 have waited for rank 1 for 9 s, as their heartbeats say; 10 s are too long."""
    made = Stalls(10.0)
    for now in range(0, 10, 3):
        beats(made, now)
    return made


def beats(stalls, now, *, zero=WAITS, one=COMPUTES, two=WAITS):
    for index, info in enumerate((zero, one, two)):
        stalls.heard(task(index), "running", info, 100.0 * index + now, now)  # each host has its own clock


def test_a_long_wait_names_the_missing_rank(stalls):
    assert stalls.find(MEMBERS, 9.0) is None
    beats(stalls, 12.0)
    assert stalls.find(MEMBERS, 12.0) == Stall((task(0), task(2)), (task(1),), 12.0)


def test_a_wait_is_told_once(stalls):
    beats(stalls, 12.0)
    assert stalls.find(MEMBERS, 12.0) is not None
    for now in range(15, 60, 3):
        beats(stalls, now)
        assert stalls.find(MEMBERS, now) is None
    assert stalls.lasts(MEMBERS)


def test_the_next_wait_is_told_too(stalls):
    beats(stalls, 12.0)
    stalls.find(MEMBERS, 12.0)
    waits, computes = {"completed": 6, "pending": 1}, {"completed": 6, "pending": 0}
    for now in range(15, 28, 3):
        beats(stalls, now, zero=computes, one=waits, two=waits)
        assert not stalls.lasts(MEMBERS)
    assert stalls.find(MEMBERS, 27.0) == Stall((task(1), task(2)), (task(0),), 12.0)


def test_progress_begins_the_time_again(stalls):
    beats(stalls, 10.0, zero={"completed": 6, "pending": 1}, two={"completed": 6, "pending": 1})
    beats(stalls, 19.0, zero={"completed": 6, "pending": 1}, two={"completed": 6, "pending": 1})
    assert stalls.find(MEMBERS, 19.0) is None


def test_ranks_that_all_wait_miss_none():
    stalls = Stalls(10.0)
    for now in range(0, 30, 3):
        beats(stalls, now, one=WAITS)
    assert stalls.find(MEMBERS, 27.0) is None


def test_a_silent_rank_is_missing_wherever_it_was():
    stalls = Stalls(10.0)
    beats(stalls, 0.0, one=WAITS)
    for now in range(3, 15, 3):
        stalls.heard(task(0), "running", WAITS, now, now)
        stalls.heard(task(2), "running", WAITS, 200.0 + now, now)
    assert stalls.find(MEMBERS, 12.0) == Stall((task(0), task(2)), (task(1),), 12.0)


def test_the_time_of_a_stop_does_not_count():
    stalls = Stalls(10.0)
    beats(stalls, 0.0)
    beats(stalls, 600.0)
    assert stalls.find(MEMBERS, 600.0) is None


def test_a_failure_is_no_progress(stalls):
    beats(stalls, 12.0)
    stalls.find(MEMBERS, 12.0)
    stalls.heard(task(0), "broken", {"completed": 6, "pending": 0}, 13.0, 13.0)
    stalls.heard(task(2), "broken", {"completed": 6, "pending": 0}, 213.0, 13.0)
    assert stalls.lasts(MEMBERS)


def test_a_rank_outside_the_world_waits_no_longer(stalls):
    beats(stalls, 12.0)
    stalls.find(MEMBERS, 12.0)
    assert not stalls.lasts([task(1)])


def test_nothing_is_known_before_all_have_spoken():
    stalls = Stalls(10.0)
    for now in range(0, 30, 3):
        stalls.heard(task(0), "running", WAITS, now, now)
    assert stalls.find(MEMBERS, 27.0) is None


def test_no_limit_finds_nothing():
    stalls = Stalls()
    for now in range(0, 900, 3):
        beats(stalls, now)
    assert stalls.find(MEMBERS, 897.0) is None
