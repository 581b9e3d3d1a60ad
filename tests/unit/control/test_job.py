"""What follows from what a coordinator hears: the news for ranks and for the launcher."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfcollective._base.failures import ExitRecord
from tfcollective._base.stacks import Activity, TaskStacks
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._control import messages
from tfcollective._control.messages import JoinRequest, Refusal
from tfcollective._control.serve.service import JobService
from tfcollective._control.state.events import (
    Admit,
    AskStacks,
    CloseAdmission,
    Effects,
    EndDump,
    Forsake,
    JobEvent,
    StoreKey,
    Tick,
    Topic,
)
from tfcollective._control.state.job import Job
from tfcollective._control.state.membership import Membership
from tfcollective._control.state.rounds import Bounds
from tfcollective._control.state.stalls import Stall
from tfcollective._control.state.store import Store
from tfcollective._control.store_keys import PENDING, TRAINING_ENDED
from tfcollective._testing.clock import ManualClock


def task(index):
    return TaskKey("worker", index)


def request(index):
    return JoinRequest(task(index), 0, "node", 100 + index, f"address-{index}")


def ended(index, code=0):
    return ExitRecord(f"worker:{index}", index, "node", 100 + index, code, None, 1.0)


@pytest.fixture
def job():
    """Three ranks train since 10 s; one that sends no heartbeat for 1 s is silent."""
    made = Job("job", Membership(workers(3), 60.0, bounds=Bounds(1, 3, 4, 30.0, 40.0)), Store(4000), 1.0)
    for index in range(3):
        made.apply(messages.Join(request(index), 0.0), 10.0)
    made.apply(messages.Started(task(0), "node", 100), 10.0)
    return made


def test_the_launcher_hears_of_each_end_once(job):
    first, second = (job.apply(messages.Exited(ended(0)), now) for now in (12.5, 13.0))
    assert first.news == (JobEvent(exited=ended(0)), JobEvent(trained=True))
    assert StoreKey(TRAINING_ENDED) in first.changed
    assert second.news == ()
    assert job.store.get(TRAINING_ENDED).version == 1
    assert job.snapshot(0.0, 0.0).durations == {"worker:0": 2.5}


def test_members_are_called_once_per_generation(job):
    job.apply(messages.Leave(task(1), True, "SIGTERM"), 11.0)
    job.apply(messages.Leave(task(2), True, "SIGTERM"), 12.0)
    entry = job.store.get(PENDING)
    assert (entry.value, entry.version) == (2, 1)


def test_the_launcher_hears_of_silent_members(job):
    assert job.apply(Tick(), 11.0).news == tuple(JobEvent(silent=(task(index), 1.0)) for index in range(3))
    job.apply(messages.Exited(ended(2, 9)), 12.0)
    job.apply(messages.Join(JoinRequest(task(0), 0, "node", 100, "another address"), 0.0), 12.0)
    news = [one for second in range(13, 53) for one in job.apply(Tick(), float(second)).news]
    (dropped,) = (one.dropped for one in news if one.dropped is not None)
    assert dropped[0] == task(1)


def test_a_value_without_room_changes_nothing(job):
    with pytest.raises(Refusal):
        job.apply(messages.Put("a", "x" * 5000), 11.0)
    assert job.apply(messages.Put("b", 1), 11.0) == Effects(messages.Stored(1), (StoreKey("b"),), ())


def stacks(index):
    return TaskStacks(task(index), 100 + index, Activity("S", 1.0))


def test_a_dump_asks_for_running_processes(job):
    asked = job.apply(AskStacks(), 11.0)
    assert asked.news == (JobEvent(dump=(asked.reply, (task(0), task(1), task(2)))),)
    for index in (0, 1):
        assert job.apply(messages.ReportStacks(asked.reply, stacks(index)), 11.0).changed == (Topic.STACKS,)
    assert not job.has_all_stacks(asked.reply)
    job.apply(messages.Exited(ended(2)), 12.0)
    assert job.has_all_stacks(asked.reply)
    found = job.apply(EndDump(asked.reply), 12.0).reply
    assert [(one.task, one.rank, one.stacks) for one in found] == [(task(0), 0, stacks(0)), (task(1), 1, stacks(1))]


def test_a_dump_that_has_ended_takes_none(job):
    asked = job.apply(AskStacks((task(1),)), 11.0)
    assert asked.news == (JobEvent(dump=(asked.reply, (task(1),))),)
    (found,) = job.apply(EndDump(asked.reply), 12.0).reply
    assert (found.task, found.stacks) == (task(1), None)
    job.apply(messages.ReportStacks(asked.reply, stacks(1)), 13.0)
    assert job.apply(AskStacks((task(1),)), 14.0).reply > asked.reply


def test_the_launcher_hears_of_a_stall_once():
    job = Job("job", Membership(workers(2), 60.0), Store(4000), 100.0, 10.0)
    for index in range(2):
        job.apply(messages.Join(JoinRequest(task(index), 2, "node", 100 + index, f"{index}"), 0.0), 10.0)
    news = []
    for now in range(10, 40, 2):
        for index in range(2):
            info = {"completed": 3, "pending": index}
            job.apply(messages.Beat(task(index), "running", info, float(now)), float(now))
        news += job.apply(Tick(), float(now)).news
    assert news == [JobEvent(stalled=Stall((task(1),), (task(0),), 10.0))]
    assert job.snapshot(0.0, 0.0).stalled


def test_heartbeats_of_a_node_count_all_or_none(job):
    before = job.snapshot(0.0, 0.0)
    with pytest.raises(Refusal, match="no task worker:9"):
        job.apply(messages.Alive("node/0", tuple(messages.Beat(task(index), "running", {}) for index in (0, 9))), 11.0)
    assert job.snapshot(0.0, 0.0) == before


def test_rounds_and_deadlines_are_effects_of_events(job):
    job.apply(messages.Exited(ended(2, 9)), 12.0)
    began = job.apply(messages.Join(JoinRequest(task(0), 0, "node", 100, "another address"), 0.0), 12.0)
    assert set(began.changed) == {Topic.ROUND, Topic.TIME}
    gone = job.apply(messages.Exited(ended(1, 9)), 13.0)
    assert job.snapshot(0.0, 0.0).generation == 2
    assert set(gone.changed) >= {Topic.ROUND, Topic.TIME, Topic.ENDS}


def test_every_request_has_a_handler():
    service = JobService(Job("job", Membership(workers(1), 60.0), Store(4000)), ManualClock())
    assert [kind for kind in messages.Request.__subclasses__() if not service.serves(kind.path)] == []


TASKS = st.integers(0, 3).map(task)
REQUESTS = st.one_of(
    st.builds(
        lambda index, size, world, lost: messages.Join(
            JoinRequest(task(index), size, "node", 100 + index, f"{index}-{world}"), 0.0, lost
        ),
        st.integers(0, 3),
        st.sampled_from([3, 3, 3, 4]),
        st.integers(1, 3),
        st.none() | st.integers(0, 3),
    ),
    st.builds(messages.Leave, TASKS, st.booleans(), st.just("why"), st.booleans()),
    st.builds(messages.NodeLeaves, st.lists(TASKS, max_size=2, unique=True).map(tuple), st.just("why")),
    st.builds(messages.Done, TASKS, st.booleans()),
    st.builds(messages.Failing, TASKS, st.just("an error")),
    st.builds(messages.Started, TASKS, st.just("node"), st.just(7)),
    st.builds(lambda index, code: messages.Exited(ended(index, code)), st.integers(0, 3), st.sampled_from([0, 9])),
    st.builds(messages.Beat, TASKS, st.just("running"), st.just({"completed": 1})),
    st.builds(messages.Put, st.sampled_from(["a", "node/0/end"]), st.integers()),
)
OTHERS = st.sampled_from([Tick(), CloseAdmission(), Admit(task(3)), Forsake(task(0)), Forsake(task(1))])
BOUNDS = st.sampled_from([None, Bounds(1, 3, 3, 5.0), Bounds(2, 3, 4, 5.0, 7.0, changes=1)])


def apply(job, event, now):
    """The effects, None if it was refused; those that wait were woken for what has changed."""
    before, due = job.snapshot(0.0, 0.0), job.membership.deadline
    try:
        effects = job.apply(event, now)
    except Refusal:
        assert job.snapshot(0.0, 0.0) == before, "refused, and changed something"
        return None
    after = job.snapshot(0.0, 0.0)
    if (after.generation, after.failure) != (before.generation, before.failure):
        assert {Topic.ROUND, Topic.TIME} <= set(effects.changed)
    assert job.membership.deadline == due or Topic.TIME in effects.changed
    assert after.generation in (before.generation, before.generation + 1)
    assert before.failure is None or after.failure == before.failure
    return effects


@given(BOUNDS, st.lists(st.tuples(REQUESTS | OTHERS, st.sampled_from([0.0, 0.5, 5.0, 10.0])), max_size=30))
@settings(max_examples=100, deadline=None)
def test_repeated_and_reordered_events_do_no_harm(bounds, events):
    job, now, admitted = Job("job", Membership(workers(3), 10.0, bounds=bounds), Store(4000), 20.0), 1.0, False
    pending, news = 0, []
    for event, seconds in events:
        now += seconds
        if isinstance(event, Admit):
            if admitted:
                continue
            admitted = True
        effects = apply(job, event, now)
        news += () if effects is None else effects.news
        if effects is not None and isinstance(event, messages.Request):
            view = job.snapshot(0.0, 0.0)
            again = apply(job, event, now)
            assert job.snapshot(0.0, 0.0) == view
            assert again is None or again.news == ()
        entry = job.store.get(PENDING)
        assert job.membership.pending <= (entry.value if entry else 0)
        pending, before = (entry.value if entry else 0), pending
        assert pending >= before
    ends = [one.exited.task for one in news if one.exited is not None]
    assert len(ends) == len(set(ends)) or bounds is None  # of a fixed job a task may come again after its end
    assert sum(one.trained for one in news) <= 1
