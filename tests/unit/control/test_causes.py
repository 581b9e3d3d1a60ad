"""Which changes of a world count, and how long newcomers wait for each other."""

import pytest

from tfcollective._base.tasks import TaskKey
from tfcollective._control.state.causes import Bundles, CountedChanges


def task(index):
    return TaskKey("worker", index)


def test_worlds_that_follow_from_one_decision_count_once():
    changes = CountedChanges(1)
    for index in (1, 2, 3):
        changes.started(task(index), 7)
    changes.leaves(task(0), 7)
    assert changes.add([task(1)], [])
    assert changes.add([task(2)], [task(0)])
    assert changes.add([task(3)], [])


@pytest.mark.parametrize("next_one", [([task(2)], []), ([], [task(0)]), ([], []), ([task(9)], [])])
def test_a_change_with_another_cause_counts(next_one):
    changes = CountedChanges(1)
    changes.started(task(1), 7)
    changes.started(task(2), 8)
    assert changes.add([task(1)], [])
    assert not changes.add(*next_one)
    assert changes.add([task(1)], [])  # nothing of it was counted


def test_starts_of_separate_decisions_count_separately():
    changes = CountedChanges(2)
    for index in (1, 2, 3):
        changes.started(task(index), 0)
    assert [changes.add([task(index)], []) for index in (1, 2, 3)] == [True, True, False]


def bundle(*indices):
    made = Bundles(3.0)
    for index in indices:
        made.started(task(index), 7)
    return made


def test_the_first_ready_wait_for_all():
    made = bundle(1, 2, 3)
    made.ready(task(2), 10.0)
    made.ready(task(1), 12.0)
    assert (made.held, made.until) == (2, 13.0)
    made.ready(task(3), 12.5)
    assert (made.held, made.until) == (0, None)


def test_ready_tasks_wait_once_and_briefly():
    made = bundle(1, 2, 3)
    made.ready(task(1), 10.0)
    made.expire(12.9)
    assert made.held == 1
    made.expire(13.0)
    assert (made.held, made.until) == (0, None)
    made.ready(task(2), 14.0)
    assert (made.held, made.until) == (0, None)


def test_ended_tasks_are_not_waited_for():
    made = bundle(1, 2)
    made.ready(task(1), 10.0)
    made.gone([task(2)], ready=False)
    assert (made.held, made.until) == (0, None)
    made = bundle(1, 2)
    made.ready(task(1), 10.0)
    made.gone([task(1)], ready=True)
    assert (made.held, made.until) == (0, None)


def test_what_was_started_alone_waits_for_nothing():
    made = Bundles(3.0)
    made.started(task(1), 0)
    made.started(task(2), 0)
    made.ready(task(1), 10.0)
    assert (made.held, made.until) == (0, None)
