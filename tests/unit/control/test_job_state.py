"""What follows from what a coordinator hears: the news for ranks and for the launcher."""

import pytest

from tfcollective._base.failures import ExitRecord
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._control.serve.job import JobEvent, JobState
from tfcollective._control.state.membership import Membership, Refusal
from tfcollective._control.state.rounds import Bounds, JoinRequest
from tfcollective._control.state.store import Store
from tfcollective._control.wire import messages
from tfcollective._control.wire.protocol import PENDING, TRAINING_ENDED


def task(index):
    return TaskKey("worker", index)


def request(index):
    return JoinRequest(task(index), 0, "node", 100 + index, f"address-{index}")


def ended(index, code=0):
    return ExitRecord(f"worker:{index}", index, "node", 100 + index, code, None, 1.0)


@pytest.fixture
def state():
    """Three ranks train since 10 s."""
    made = JobState(Membership(workers(3), 60.0, bounds=Bounds(1, 3, 4, 30.0, 40.0)), Store(4000))
    for index in range(3):
        made.make(messages.Join(request(index), 0.0), 10.0)
    made.make(messages.Started(task(0), "node", 100), 10.0)
    return made


def test_the_launcher_hears_of_an_end_once_however_often_it_is_reported(state):
    for now in (12.5, 13.0):
        state.make(messages.Exited(ended(0)), now)
    assert state.take_events() == [JobEvent(exited=ended(0)), JobEvent(trained=True)]
    assert state.take_events() == []
    assert state.store.get(TRAINING_ENDED).version == 1
    assert state.durations == {task(0): 2.5}


def test_the_members_are_asked_to_come_together_once_for_each_generation(state):
    state.make(messages.Leave(task(1), True, "SIGTERM"), 11.0)
    state.make(messages.Leave(task(2), True, "SIGTERM"), 12.0)
    entry = state.store.get(PENDING)
    assert (entry.value, entry.version) == (2, 1)


def test_the_launcher_hears_of_members_that_are_silent_or_do_not_come(state):
    state.find_silent(11.0, 1.0)
    assert state.take_events() == [JobEvent(silent=(task(index), 1.0)) for index in range(3)]
    state.make(messages.Exited(ended(2, 9)), 12.0)
    state.make(messages.Join(JoinRequest(task(0), 0, "node", 100, "another address"), 0.0), 12.0)
    state.take_events()
    for second in range(13, 53):
        state.expire(float(second))
    (event,) = state.take_events()
    assert event.dropped is not None
    assert event.dropped[0] == task(1)


def test_a_value_for_which_there_is_no_room_is_refused_and_changes_nothing(state):
    with pytest.raises(Refusal):
        state.make(messages.Put("a", "x" * 5000), 11.0)
    assert state.take_touched() == []
