"""The membership: every rule by example, then invariants over random sequences of events."""

import math
import random
import sys
from dataclasses import replace

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._base.failures import ErrorKind, ExceptionRecord, ExitReason, ExitRecord
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._base.topology import World
from tfcollective._control.messages import JoinRequest, Refusal
from tfcollective._control.snapshot import RendezvousFailure, TaskState
from tfcollective._control.state.membership import Membership

TIMEOUT = 10.0


def task(index):
    return TaskKey("worker", index)


def request(index, size, *, pid=None, round_=0):
    return JoinRequest(task(index), size, "node", 100 + index if pid is None else pid, f"address-{index}-{round_}")


def ended(index, code=0, signal=None):
    return ExitRecord(f"worker:{index}", index, "node", 100 + index, None if signal else code, signal, 1.0)


def membership(size):
    return Membership(workers(size), TIMEOUT, longest_gap=math.inf)


def states(state):
    return [view.state for view in state.views]


def test_the_world_forms_once_all_have_joined():
    state = membership(3)
    for index in (2, 0):
        state.join(request(index, 3), now=0.0)
        assert state.outcome(request(2, 3)) is None
    assert state.missing == (task(1),)
    state.join(request(1, 3), now=0.0)
    outcomes = [state.outcome(request(index, 3)) for index in range(3)]
    assert all(isinstance(outcome, World) and outcome.generation == 1 for outcome in outcomes)
    assert outcomes[0].addresses == ("address-0-0", "address-1-0", "address-2-0")
    assert states(state) == [TaskState.RUNNING] * 3
    assert state.deadline is None


def test_joining_again_with_the_same_words_changes_nothing():
    state = membership(2)
    for _ in range(3):
        state.join(request(0, 2), now=0.0)
    state.join(request(1, 2), now=0.0)
    state.join(request(0, 2), now=5.0)  # its reply got lost
    assert state.outcome(request(0, 2)) == state.world


def test_a_second_process_for_a_task_is_refused():
    state = membership(2)
    state.join(request(0, 2), now=0.0)
    with pytest.raises(Refusal, match="process 100 on node node"):
        state.join(request(0, 2, pid=999), now=0.0)
    state.join(request(1, 2), now=0.0)
    with pytest.raises(Refusal, match=r"has joined already.*two jobs meet.*JOB_ID.*RENDEZVOUS"):
        state.join(request(0, 2, pid=999), now=0.0)
    assert [view.pid for view in state.views] == [100, 101]


def test_a_dead_waiter_is_waited_for_again():
    """What comes in its place may be refused: a process with another size."""
    state = membership(3)
    state.join(request(1, 3), now=0.0)
    state.forsake(task(1))
    assert state.deadline is None
    with pytest.raises(Refusal, match="world of 4"):
        state.join(request(1, 4, pid=999), now=1.0)
    state.join(request(0, 3), now=2.0)
    assert (state.failure, state.deadline) == (None, 2.0 + TIMEOUT)
    state.join(request(2, 3), now=2.0)
    assert state.world is None
    state.join(request(1, 3, pid=998), now=2.0)
    assert [member.pid for member in state.world.members] == [100, 998, 102]


def test_a_process_started_by_ranks_is_told():
    """It runs the script of its parent once more, or a program that calls init(), in the environment of its parent."""
    state = membership(2)
    state.join(request(0, 2), now=0.0)
    state.join(request(1, 2), now=0.0)
    child = replace(request(1, 2, pid=999), ancestors=(500, 101, 1))
    with pytest.raises(Refusal, match=r"this process \(999\) was started by worker:1 itself.*__main__"):
        state.join(child, now=0.0)
    with pytest.raises(Refusal, match="two jobs meet"):  # numbers of processes of another host
        state.join(replace(child, node="other"), now=0.0)


def test_the_last_waiting_rank_names_the_missing():
    state = membership(3)
    assert not state.tells_missing(task(0))
    state.join(request(2, 3), now=0.0)
    assert state.tells_missing(task(2))
    state.join(request(1, 3), now=0.0)
    assert [state.tells_missing(task(index)) for index in range(3)] == [False, True, False]
    state.join(request(0, 3), now=0.0)
    assert not any(state.tells_missing(task(index)) for index in range(3))


def test_unknown_tasks_and_other_worlds_are_refused():
    state = membership(2)
    with pytest.raises(Refusal, match="no task worker:2"):
        state.join(request(2, 2), now=0.0)
    with pytest.raises(Refusal, match="world of 3"):
        state.join(request(0, 3), now=0.0)
    with pytest.raises(Refusal):
        state.heartbeat(task(5), "", {}, now=0.0)


def test_the_start_timeout_counts_from_the_first_join():
    state = membership(3)
    state.expire(now=1000.0)
    assert state.failure is None
    state.join(request(1, 3), now=1000.0)
    state.join(request(0, 3), now=1009.0)
    assert state.deadline == 1010.0
    state.expire(now=1009.9)
    assert state.failure is None
    state.expire(now=1010.0)
    assert state.failure == RendezvousFailure("2 of 3 tasks joined within 10 s; missing: worker:2", ("worker:2",), True)
    assert state.outcome(request(0, 3)) is state.failure
    state.join(request(2, 3), now=1011.0)  # too late: gets the same answer
    assert state.outcome(request(2, 3)) is state.failure


def test_a_silent_member_is_reported_again():
    state = membership(3)
    assert not state.expects_heartbeats
    for index in range(3):
        state.join(request(index, 3), now=0.0)
    state.heartbeat(task(0), "", {}, now=4.0)
    state.leave(task(2), now=4.0)
    assert state.expects_heartbeats
    assert state.find_silent(4.9, 5.0) == {}
    assert state.find_silent(5.0, 5.0) == {task(1): 5.0}
    assert state.find_silent(8.9, 5.0) == {}
    assert state.find_silent(9.0, 5.0) == {task(0): 5.0}
    assert state.find_silent(9.9, 5.0) == {}
    assert state.find_silent(10.0, 5.0) == {task(1): 10.0}
    state.heartbeat(task(1), "", {}, now=11.0)
    assert state.find_silent(15.9, 5.0) == {task(0): 11.9}
    assert state.find_silent(16.0, 5.0) == {task(1): 5.0}
    for index in range(2):
        state.leave(task(index), now=17.0)
    assert not state.expects_heartbeats


def test_waiting_for_the_others_is_no_silence():
    state = membership(2)
    state.join(request(0, 2), now=0.0)
    assert state.find_silent(9.0, 5.0) == {}
    state.join(request(1, 2), now=9.0)
    assert state.find_silent(13.9, 5.0) == {}
    assert state.find_silent(14.0, 5.0) == {task(0): 5.0, task(1): 5.0}


@pytest.mark.parametrize("exit_first", [True, False])
def test_a_task_ending_before_joining_fails_all(exit_first):
    state = membership(2)
    if exit_first:
        state.exited(ended(1, code=3), now=1.0)
        assert state.failure is None
        state.join(request(0, 2), now=0.0)
    else:
        state.join(request(0, 2), now=0.0)
        state.exited(ended(1, code=3), now=1.0)
    assert state.failure is not None
    assert (
        state.failure.message
        == "worker:1 (rank 1, pid 101) exited with code 3 before it had joined the job with init()"
    )
    assert state.failure.missing == ("worker:1",)
    assert not state.failure.timed_out
    assert state.deadline is None


def test_a_task_ending_while_waiting_fails_all():
    state = membership(2)
    state.join(request(0, 2), now=0.0)
    state.exited(ended(0, signal=9), now=1.0)
    assert "was killed by SIGKILL while it waited" in state.failure.message


def test_a_command_that_never_joins_is_no_failure():
    state = membership(2)
    state.exited(ended(0), now=1.0)
    state.exited(ended(1, code=5), now=1.0)
    assert state.failure is None
    assert not state.initialised
    assert states(state) == [TaskState.EXITED, TaskState.FAILED]


def test_leaving_and_joining_again_makes_the_next_generation():
    state = membership(2)
    for index in range(2):
        state.join(request(index, 2), now=0.0)
    state.leave(task(0), now=1.0)
    state.join(request(0, 2, round_=1), now=2.0)  # while worker:1 is still in the first world
    assert states(state) == [TaskState.WAITING, TaskState.RUNNING]
    assert state.outcome(request(0, 2, round_=1)) is None
    state.leave(task(1), now=3.0)
    state.join(request(1, 2, round_=1), now=3.0)
    assert state.world.generation == 2
    assert state.world.addresses == ("address-0-1", "address-1-1")


def test_a_later_end_is_only_recorded():
    state = membership(2)
    for index in range(2):
        state.join(request(index, 2), now=0.0)
    state.exited(ended(1, signal=9), now=1.0)
    state.exited(ended(1, code=0), now=1.0)  # a second report: the first stays
    assert state.failure is None
    assert states(state) == [TaskState.RUNNING, TaskState.FAILED]
    assert state.views[1].exit.signal == 9


def test_a_rank_joining_early_keeps_its_host():
    state = membership(1)
    state.join(request(0, 1), now=0.0)
    state.started(task(0), "node", 7, "host")
    state.heartbeat(task(0), "running", {}, now=3.0)
    assert (states(state), state.views[0].host) == ([TaskState.RUNNING], "host")


def test_heartbeats_are_kept():
    state = membership(1)
    state.started(task(0), "node", 7)
    assert states(state) == [TaskState.STARTED]
    state.heartbeat(task(0), "running", {"completed": 4}, now=3.0)
    view = state.views[0]
    assert (view.pid, view.last_heartbeat, view.activity, view.info) == (7, 3.0, "running", {"completed": 4})


def test_the_newest_heartbeat_counts_in_any_order():
    state = membership(1)
    state.heartbeat(task(0), "running", {"completed": 5}, now=3.0, said=70.5)
    state.heartbeat(task(0), "running", {"completed": 4}, now=4.0, said=70.0)
    assert (state.views[0].last_heartbeat, state.views[0].info) == (3.0, {"completed": 5})
    state.join(request(0, 1, pid=7), now=5.0)  # a process on another host, whose clock is another
    state.heartbeat(task(0), "running", {"completed": 1}, now=6.0, said=2.0)
    assert state.views[0].info == {"completed": 1}


def lines_run(work):
    """How many lines of Python `work` runs."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_the_cost_of_a_round_is_linear():
    def whole_round(size):
        state = membership(size)
        for index in range(size):
            state.join(request(index, size), now=0.0)
            state.outcome(request(index, size))
        for index in range(size):
            assert state.outcome(request(index, size)) is state.world
            assert state.lost_member(1) is None
            state.heartbeat(task(index), "running", {}, now=1.0)

    small, large = (lines_run(lambda size=size: whole_round(size)) for size in (100, 200))
    assert large < 2.1 * small


def test_a_job_has_trainers_each_once():
    for tasks in ((), (task(0), task(0)), (TaskKey("evaluator", 0),)):
        with pytest.raises(ConfigError):
            Membership(tasks, TIMEOUT)


class Player:
    """Sends random events to a membership of random size."""

    def __init__(self, seed):
        self._rng = random.Random(seed)
        self.size = self._rng.randint(1, 4)
        self.state = membership(self.size)
        self._now = 0.0
        self._rounds = [0] * self.size
        self._events = [self._join] * 6 + [self._leave] * 3 + [self._heartbeat, self._started, self._expire]
        self._events += [self._exit] * (seed % 2)

    def step(self):
        self._now += self._rng.random() * 2
        self._rng.choice(self._events)(self._rng.randrange(self.size))

    def _join(self, index):
        before = self.state.views[index].state
        try:
            self.state.join(request(index, self.size, round_=self._rounds[index]), self._now)
        except Refusal:
            assert before in (TaskState.RUNNING, TaskState.WAITING)

    def _leave(self, index):
        self._rounds[index] += self.state.views[index].state is TaskState.RUNNING
        self.state.leave(task(index), self._now)

    def _heartbeat(self, index):
        self.state.heartbeat(task(index), "x", {}, self._now)

    def _started(self, index):
        self.state.started(task(index), "node", 1)

    def _expire(self, index):
        self.state.expire(self._now)

    def _exit(self, index):
        if self._rng.random() < 0.1:
            self.state.exited(ended(index, code=self._rng.choice([0, 1])), now=1.0)


@pytest.mark.parametrize("seed", range(300))
def test_invariants_over_random_events(seed):
    """At any time: a world is complete or absent, a failure stays, and every wait has a deadline."""
    player = Player(seed)
    state, failure, generation = player.state, None, 0
    for _ in range(60):
        player.step()
        assert failure is None or state.failure is failure
        failure = state.failure
        if state.world is not None:
            assert state.world.size == player.size
            assert state.world.generation in (generation, generation + 1)
            generation = state.world.generation
        waiting = [view for view in state.views if view.state is TaskState.WAITING]
        assert len(waiting) < player.size or failure is not None
        assert (state.deadline is not None) == (bool(waiting) and failure is None)
        if waiting and failure is None:
            assert not any(view.ended for view in state.views)


def test_auxiliary_tasks_are_known_but_not_awaited():
    evaluator = TaskKey("evaluator", 0)
    state = Membership([task(0), task(1)], 10.0, auxiliary_tasks=[evaluator])
    assert [(view.task, view.rank) for view in state.side_views] == [(evaluator, -1)]
    for index in range(2):
        state.join(request(index, 2), now=0.0)
    assert state.world is not None
    state.started(evaluator, "node", 77)
    assert state.side_views[0].state is TaskState.STARTED
    state.heartbeat(evaluator, "running", {"url": "u"}, now=3.0)
    assert (state.side_views[0].state, state.side_views[0].info) == (TaskState.RUNNING, {"url": "u"})
    assert state.find_silent(1000.0, 2000.0) == {}
    with pytest.raises(Refusal, match="evaluator:0 is outside the world"):
        state.join(JoinRequest(evaluator, 2, "node", 77, "a"), now=4.0)
    record = ExitRecord("evaluator:0", -1, "node", 77, 1, None, 5.0)
    state.exited(record, now=5.0)
    assert (state.side_views[0].state, state.failure, len(state.views)) == (TaskState.FAILED, None, 2)
    state.heartbeat(evaluator, "running", {"url": "v"}, now=6.0)  # one that was under way
    assert state.side_views[0].state is TaskState.FAILED


def test_the_first_unprovoked_loss_is_reported():
    state = membership(3)
    for index in range(3):
        state.join(request(index, 3), now=0.0)
    assert state.lost_member(1) is None
    consequence = ExceptionRecord("PeerLostError", "rank 2 is gone", "", 0.5, ErrorKind.PEER)
    state.exited(replace(ended(0, code=1), time=0.5, exception=consequence), now=1.0)  # its agent has spoken first
    state.exited(replace(ended(1, signal=15), time=2.0, reason=ExitReason.STOPPED), now=2.0)
    state.exited(ended(2, signal=9), now=2.0)
    assert state.lost_member(1) == (2, "rank 2 (worker:2, pid 102) was killed by SIGKILL")
    assert state.lost_member(2) is None  # another world


def test_the_first_report_sets_the_time():
    state = membership(2)
    state.exited(ended(1, code=3), now=4.0)
    state.exited(replace(ended(1, code=3), time=0.0), now=6.0)  # repeated, because the answer was lost
    assert state.views[1].exit.seen == 4.0


def test_a_member_that_ended_may_be_missed():
    state = membership(3)
    for index in range(3):
        state.join(request(index, 3), now=0.0)
    consequence = ExceptionRecord("PeerLostError", "rank 1 is gone", "", 0.5, ErrorKind.PEER, blames=1)
    state.exited(replace(ended(0, code=1), exception=consequence), now=1.0)
    state.exited(ended(1, code=0), now=1.5)
    assert state.lost_member(1)[0] == 1
    state.exited(ended(2, signal=9), now=2.0)
    assert state.lost_member(1)[0] == 2


def test_training_has_ended_when_rank_0_has():
    state = membership(2)
    state.exited(ended(1), now=1.0)
    assert not state.training_ended
    state.exited(ended(0), now=2.0)
    assert state.training_ended


def test_a_failed_rank_that_hangs_is_killed():
    state = membership(2)
    for index in range(2):
        state.join(request(index, 2), now=0.0)
    state.failing(task(1), "ValueError: the data is rotten", 1.5)
    assert state.expire(11.4) == {}
    assert state.expire(state.deadline) == {task(1): "had not ended 10 s after its error, and was killed"}
    assert (state.world.size, state.deadline) == (2, None)


def test_a_failed_rank_that_ends_is_left_alone():
    state = membership(1)
    state.join(request(0, 1), now=0.0)
    state.failing(task(0), "ValueError: the data is rotten", 1.5)
    state.exited(ended(0, code=1), 2.0)
    assert state.deadline is None
