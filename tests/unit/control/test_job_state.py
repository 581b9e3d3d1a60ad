"""What a coordinator knows of its job is the same in a process that has read the journal of another one."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfcollective._base.failures import ExceptionRecord, ExitRecord
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._base.timing import TIMING
from tfcollective._control.serve.job import Forsake, JobState, Resume
from tfcollective._control.serve.journal import from_line, to_line
from tfcollective._control.state.membership import Membership, Refusal
from tfcollective._control.state.rounds import Bounds, JoinRequest
from tfcollective._control.state.store import Store
from tfcollective._control.wire import messages
from tfcollective._control.wire.protocol import PENDING, TRAINING_ENDED

SIDE = TaskKey("evaluator", 0)


def task(index):
    return TaskKey("worker", index)


def made(record=None):
    membership = Membership(workers(3), 60.0, (SIDE,), bounds=Bounds(1, 3, 4, 30.0, 40.0))
    return JobState(membership, Store(4000), record)


def request(index, round_=0):
    return JoinRequest(task(index), 0, "node", 100 + index, f"address-{index}-{round_}")


def ended(which, code=0, raised=False):
    exception = ExceptionRecord("ValueError", "bad", "", 1.0, consequence=False) if raised else None
    return ExitRecord(str(which), 0, "node", 100, code, None, 1.0, exception=exception)


def repeated(lines, record=None):
    other = made(record)
    other.repeat(map(from_line, tuple(lines)))
    return other


def essence(view):
    """Without what the next sign of life says anew."""
    return view if view.ended else replace(view, last_heartbeat=None, activity="", info={}, said=0.0)


def seen(state):
    membership = state.membership
    deadline = membership.deadline
    waits = deadline if deadline is None else round(deadline - membership.stopped, 6)
    return {
        "views": [essence(view) for view in (*membership.views, *membership.side_views)],
        "world": membership.world,
        "members": membership.members,
        "changes": membership.changes,
        "leavers": membership.leavers,
        "leaving": membership.leaving,
        "pending": membership.pending,
        "missing": membership.missing,
        "done": membership.done,
        "failure": membership.failure,
        "ended": membership.training_ended,
        "lost": membership.lost_member(membership.world.generation) if membership.world else None,
        "mark": membership.mark,
        "waits": waits if not membership._overdue else None,  # these are not of the rounds
        "overdue": membership._overdue,
        "entries": state.store._entries,
        "used": state.store._used,
        "events": state.events,
        "durations": state.durations,
        "changed": state.changes,
        "announced": state.announced,
        "nodes": (state.nodes.count, state.nodes.since(0), list(state.nodes._ended)),
    }


indices = st.integers(0, 4)
tasks = st.one_of(indices.map(task), st.just(SIDE))
phases = st.fixed_dictionaries({"generation": st.integers(1, 3), "sync": st.floats(0.0, 2.0)})
infos = st.one_of(
    st.just({}), st.fixed_dictionaries({"step": st.integers(0, 9)}), st.fixed_dictionaries({"change": phases})
)
exits = st.builds(ended, tasks, st.sampled_from([0, 0, 1, 137]), st.booleans())
changes = st.one_of(
    st.builds(messages.Join, st.builds(request, indices, st.integers(0, 3)), st.just(0.0), st.none() | indices),
    st.builds(messages.Leave, tasks, st.booleans(), st.sampled_from(["", "SIGTERM"]), st.booleans()),
    st.builds(messages.NodeLeaves, st.lists(tasks, max_size=2).map(tuple), st.just("its node goes")),
    st.builds(messages.Done, indices.map(task), st.booleans()),
    st.builds(messages.Failing, tasks, st.just("ValueError")),
    st.builds(messages.Admit, st.integers(3, 4).map(task)),
    st.builds(messages.Started, tasks, st.just("node"), st.integers(100, 105)),
    st.builds(messages.Exited, exits),
    st.builds(Forsake, tasks),
    st.builds(messages.Put, st.sampled_from(["a", "b", PENDING]), st.integers() | st.text(max_size=300)),
    st.builds(messages.Remove, st.just("a")),
    st.builds(messages.Enroll, st.sampled_from(["x", "y"]), st.just({"name": "n"})),
    st.builds(messages.AdmitNoMore),
)
beats = st.builds(messages.Beat, tasks, st.just("running"), infos)
joins = st.builds(messages.Join, st.builds(request, st.integers(0, 2), st.integers(0, 3)), st.just(0.0))
steps = st.tuples(
    st.sampled_from([0.0, 0.1, 1.0, 1.9, 5.0, 16.0, 45.0]),
    st.one_of(joins, joins, changes, beats, st.sampled_from(["expire", "silence", "watch", "pause"])),
)


def do(state, what, now):
    if isinstance(what, messages.Beat):
        state.hear(what, now)
    elif what == "expire":
        state.expire(now)
    elif what == "silence":
        state.find_silent(now, 10.0)
    elif what == "pause":
        state.membership.pause(now)
    else:
        state.make(what, now)


@settings(max_examples=400, deadline=None)
@given(st.lists(steps, max_size=60))
def test_what_is_read_in_the_journal_is_what_was_known(history):
    lines = []
    state, now = made(lambda change: lines.append(to_line(change))), 1000.0
    for pause, what in history:
        if what == "watch":  # as a coordinator does while something is waited for
            for _ in range(int(pause)):
                now += 1.0
                state.expire(now)
                state.find_silent(now, 10.0)
            continue
        now += pause
        try:
            do(state, what, now)
        except Refusal:
            continue
    assert seen(repeated(lines)) == seen(state)


@settings(max_examples=100, deadline=None)
@given(st.lists(steps, max_size=40), st.lists(steps, max_size=40))
def test_so_it_is_after_a_second_death(before, after):
    """A process that has gone on writes on: what it changes is done again behind what it has read."""
    lines = []
    state, now = made(lambda change: lines.append(to_line(change))), 1000.0
    for history in (before, after):
        for pause, what in history:
            now += pause
            try:
                do(state, "expire" if what == "watch" else what, now)
            except Refusal:
                continue
        reread = repeated(lines, lambda change: lines.append(to_line(change)))
        assert seen(reread) == seen(state)
        state, now = reread, now + 3.0
        state.make(Resume(), now)


def trained(lines):
    """A job of three whose rank 0 has completed the training."""
    state = made(lambda change: lines.append(to_line(change)))
    for index in range(3):
        state.make(messages.Join(request(index), 0.0), 10.0)
    state.make(messages.Started(task(0), "node", 100), 10.0)
    state.hear(messages.Beat(task(0), "running", {"step": 7}, 3.0), 11.0)
    state.make(messages.Enroll("x", {"name": "n"}), 11.0)
    state.make(messages.Exited(ended(task(0))), 12.5)
    return state


def test_the_launcher_hears_of_an_end_once_however_often_it_is_reported():
    state = trained([])
    before = list(state.events)
    state.make(messages.Exited(ended(task(0))), 13.0)
    assert state.events == before == [messages.JobEvent(exited=ended(task(0))), messages.JobEvent(trained=True)]


def test_what_a_task_said_last_and_the_versions_of_values_outlast_the_process():
    lines = []
    state = trained(lines)
    other = repeated(lines)
    view = other.membership.view_of(task(0))
    assert view == state.membership.view_of(task(0))
    assert (view.info, view.last_heartbeat) == ({"step": 7}, 11.0)
    assert other.durations == {task(0): 2.5}
    assert other.store.get(TRAINING_ENDED).version == 1
    assert other.make(messages.Put("a", 1), 20.0) == 1
    assert other.make(messages.Enroll("x", {"name": "n"}), 20.0) == 0
    assert other.make(messages.Enroll("y", {"name": "m"}), 20.0) == 1
    assert [one.facts for one in other.nodes.since(0)] == [{"name": "n"}, {"name": "m"}]


def test_signs_of_life_that_change_nothing_are_not_written_down():
    lines = []
    state = trained(lines)
    before = len(lines)
    for second in range(100):
        state.hear(messages.Beat(task(1), "running", {"step": second}), 13.0 + second)
        state.expire(13.0 + second)
        state.find_silent(13.0 + second, math.inf)
    assert len(lines) == before


def test_none_is_given_up_because_the_coordinator_was_away():
    lines = []
    trained(lines)
    other = repeated(lines)
    other.make(Resume(), 500.0)
    other.find_silent(500.0 + TIMING.watch, 10.0)
    other.expire(500.0 + TIMING.watch)
    assert other.events == repeated(lines).events
    assert [other.membership.view_of(task(index)).last_heartbeat for index in (1, 2)] == [500.0, 500.0]


def test_a_full_store_refuses_and_nothing_is_written_down():
    lines = []
    state = made(lambda change: lines.append(to_line(change)))
    with pytest.raises(Refusal):
        state.make(messages.Put("a", "x" * 5000), 1.0)
    assert not lines
