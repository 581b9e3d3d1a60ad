"""The membership of an elastic job: what ends it, and what it outlasts."""

import math
import signal
from dataclasses import replace

import pytest

from tfcollective._base.failures import ErrorKind, ExceptionRecord, ExitReason, ExitRecord
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._base.timing import TIMING
from tfcollective._control.messages import JoinRequest, Refusal
from tfcollective._control.snapshot import RendezvousFailure, WorldChange
from tfcollective._control.state.membership import LeaveRequest, Membership
from tfcollective._control.state.rounds import Bounds


def task(index):
    return TaskKey("worker", index)


def request(index, world=1):
    return JoinRequest(task(index), 3, "node", 100 + index, f"address-{index}-{world}")


def ended(index, code=0, exception=None):
    return ExitRecord(f"worker:{index}", index, "node", 100 + index, code, None, 1.0, exception=exception)


def begun(size=3, smallest=1, longest_gap=math.inf):
    state = Membership(workers(size), 10.0, longest_gap=longest_gap, bounds=Bounds(smallest, size, size, 5.0))
    for index in range(size):
        state.join(request(index), 0.0)
    return state


def order(state):
    return [one.index for one in state.members]


def test_a_leaver_has_not_ended_the_training():
    state = begun()
    state.leave(task(0), 1.0, for_good=True)
    assert state.pending == 2
    assert set(state.leavers) == {task(0)}
    with pytest.raises(Refusal, match="worker:0 was removed from the job: it was asked to leave"):
        state.join(request(0, world=2), 1.2)
    state.exited(ended(0), 1.5)  # rank 0, with code 0
    assert not state.training_ended
    for index in (1, 2):
        state.join(request(index, world=2), 2.0)
    assert order(state) == [1, 2]


def test_every_change_is_noted_with_its_duration():
    state = begun()
    state.exited(ended(1, code=9), 1.0)
    state.join(request(0, world=2), 1.5)
    state.join(request(2, world=2), 1.75)
    state.admit(task(3))
    state.join(request(3), 4.0)
    for index in (0, 2):
        state.join(request(index, world=3), 4.5)
    assert state.changes == (
        WorldChange(2, 2, (task(1),), (), 0.75, "worker:1 exited with code 9", at=1.75, detect=0.5),
        WorldChange(3, 3, (), (task(3),), 0.5, at=4.5, detect=0.5),
    )
    for index, sync in ((0, 0.25), (2, 0.5), (0, 0.25)):
        said = {"generation": 3, "connect": 0.125, "sync": sync, "mood": "good", "first_step": None}
        earlier = state.changes[1]
        state.heartbeat(task(index), "running", {"change": said}, 5.0)
        assert (earlier != state.changes[1]) is (sync > earlier.after.get("sync", 0.0))  # or nobody would hear of it
    for nonsense in (3, {"generation": 9}, {"generation": "3"}, {"sync": 1.0}):
        state.heartbeat(task(0), "running", {"change": nonsense}, 5.0)
    assert list(state.changes[0].phases.items()) == [("detect", 0.5), ("agree", 0.25)]
    assert list(state.changes[1].phases.items()) == [("detect", 0.5), ("agree", 0.0), ("connect", 0.125), ("sync", 0.5)]


def test_a_change_names_why_members_are_missing():
    state = begun(4)
    state.exited(replace(ended(1, code=None), signal=signal.SIGKILL), 1.0)
    state.leave(task(2), 1.0, for_good=True, why="SIGTERM")
    state.ask_to_leave([task(3)], "its agent got SIGTERM", 1.0)
    for index in (3, 0):
        state.join(request(index, world=2), 1.5)
    (change,) = state.changes
    assert change.cause == (
        "worker:1 was killed by SIGKILL, worker:2 left: SIGTERM, worker:3 left: its agent got SIGTERM"
    )
    assert change.seconds == change.detect == 0.5


def failure_of(state, index):
    outcome = state.outcome(request(index, world=2))
    assert isinstance(outcome, RendezvousFailure)
    return outcome.message


def test_too_few_ranks_hear_none_will_come():
    state = begun(smallest=3)
    state.exited(ended(1, code=9), 1.0)
    state.join(request(0, world=2), 1.5)
    assert state.outcome(request(0, world=2)) is None
    state.close_admission(2.0)
    expected = "1 rank is left, at least 3 are needed, and no others will come; first, rank 1 (worker:1, pid 101)"
    assert failure_of(state, 0).startswith(expected)


def test_the_limit_of_changes_is_named():
    state = Membership(workers(2), 10.0, longest_gap=math.inf, bounds=Bounds(1, 2, 2, 5.0, changes=0))
    for index in range(2):
        state.join(request(index), 0.0)
    state.exited(ended(1, code=9), 1.0)
    state.join(request(0, world=2), 1.5)
    assert failure_of(state, 0).startswith("the world may not change again: --reset-limit is 0; f")


def test_a_rank_ending_well_completes_the_training():
    state = begun()
    state.exited(ended(0), 1.0)
    assert state.training_ended


def test_a_rank_behind_rank_0_hears_so():
    state = begun()
    state.done_training(task(0), 1.0)
    assert (state.trained, state.done) == (True, {task(0)})
    state.exited(ended(1, code=9), 1.0)
    for _ in range(2):
        state.join(request(2, world=2), 2.0, lost=1)
        assert state.outcome(request(2, world=2)).over
    assert (state.deadline, state.failure) == (None, None)
    state.exited(ended(2), 3.0)
    assert not state.training_ended
    state.exited(ended(0), 4.0)
    assert state.training_ended
    assert state.failure is None


def test_a_second_training_waits_for_all():
    state = begun()
    for index in range(3):
        state.done_training(task(index), 1.0)
    state.exited(ended(2, code=9), 1.5)
    for index in (1, 0):
        state.done_training(task(index), 2.0, again=True)
    assert not state.trained
    state.join(request(1, world=2), 2.0)
    assert state.world.generation == 1
    state.join(request(0, world=2), 3.0)
    assert order(state) == [0, 1]


def test_a_program_error_ends_the_job_early():
    state = begun()
    state.join(request(0, world=2), 1.0)
    state.failing(task(1), "ValueError: the data is rotten", 1.5)
    message = state.outcome(request(0, world=2)).message
    assert (
        "ends an elastic job, too; first, rank 1 (worker:1, pid 101) failed: ValueError: the data is rotten" in message
    )
    assert state.expire(state.deadline - 0.1) == {}
    assert state.expire(state.deadline) == {task(1): "had not ended 10 s after its error, and was killed"}
    assert state.deadline is None


def test_a_program_error_may_cost_one_rank():
    state = Membership(workers(3), 10.0, longest_gap=math.inf, bounds=Bounds(1, 3, 3, 30.0, outlasts_errors=True))
    for index in range(3):
        state.join(request(index), 0.0)
    state.join(request(0, world=2), 1.0)
    state.join(request(2, world=2), 1.0)
    state.failing(task(1), "ValueError: the data is rotten", 1.5)
    assert order(state) == [0, 2]  # they do not wait for the end of its process
    error = ExceptionRecord("ValueError", "the data is rotten", "", 1.0)
    state.exited(ended(1, code=1, exception=error), 2.0)
    assert (state.failure, state.deadline) == (None, None)
    assert state.changes[0].cause == "worker:1 exited with code 1"


def replaced(longest_gap=math.inf):
    """A job whose second rank is lost, in whose place a process was started at 10 s."""
    state = begun(2, longest_gap=longest_gap)
    state.exited(ended(1, code=9), 1.0)
    state.join(request(0, world=2), 1.0)
    state.admit(task(2))
    state.started(task(2), "node", 102, now=10.0)
    return state


def test_a_replacement_that_misses_init_is_killed():
    state = replaced()
    assert state.expire(19.9) == {}
    assert state.expire(state.deadline) == {
        task(2): "had not called init() within 10 s (--start-timeout), and was killed"
    }
    assert (state.deadline, order(state)) == (None, [0])


def test_a_coordinators_pause_extends_a_replacements_time():
    state = replaced(longest_gap=9.0)
    state.expire(10.0)
    state.expire(19.5)  # it was stopped in between
    assert state.expire(28.4) == {}
    assert list(state.expire(29.5)) == [task(2)]


@pytest.mark.parametrize(
    "come",
    [
        lambda state: state.heartbeat(task(2), "running", {}, 19.0),
        lambda state: state.join(request(2), 19.0),
        lambda state: state.exited(ended(2, code=1), 19.0),
    ],
)
def test_a_replacement_has_come_once_it_says_anything(come):
    state = replaced()
    come(state)
    assert state.deadline is None


def test_a_stopped_replacement_loses_its_slot():
    state = replaced()
    state.heartbeat(task(2), "running", {}, 19.0)
    assert state.find_silent(118.0, 100.0) == {task(0): 117.0}
    state.heartbeat(task(0), "running", {}, 118.0)
    assert state.find_silent(119.0, 100.0) == {task(2): 100.0}


def test_ending_soon_after_an_error_avoids_killing():
    state = begun()
    state.leave(task(2), 1.0, for_good=True)
    state.failing(task(2), "ValueError: on its way out", 1.0)
    assert state.failure is None
    state.failing(task(1), "ValueError: the data is rotten", 1.5)
    state.exited(ended(1, code=1), 2.0)
    assert state.deadline is None
    assert state.expire(100.0) == {}


def test_a_silent_newcomer_joins_once_heard():
    state = begun(size=2)
    state.exited(ended(1, code=9), 1.0)
    state.join(request(0, world=2), 1.0)
    state.admit(task(2))
    state.join(request(2), 10.0)
    assert state.pending == 3
    assert state.find_silent(10.0 + TIMING.newcomer_silent, 1000.0) == {}
    assert state.pending == 0
    state.join(request(0, world=3), 26.0)  # it had heard of the change
    assert (state.world.generation, order(state)) == (3, [0])
    state.heartbeat(task(2), "running", {}, 30.0)
    assert state.pending == 4
    state.join(request(0, world=4), 30.0)
    assert order(state) == [0, 2]
    assert state.outcome(request(2)) == state.world


def test_a_silent_newcomer_being_preempted_never_joins():
    state = begun(size=2)
    state.exited(ended(1, code=9), 1.0)
    state.join(request(0, world=2), 1.0)
    state.admit(task(2))
    state.join(request(2), 10.0)
    state.find_silent(10.0 + TIMING.newcomer_silent, 1000.0)
    state.ask_to_leave([task(2)], "SIGTERM", 26.0)
    state.heartbeat(task(2), "running", {}, 27.0)
    assert state.outcome(request(2)) == LeaveRequest("SIGTERM")
    assert (state.pending, state.leavers) == (0, {task(2): "SIGTERM"})


def test_a_newcomer_stopped_while_connecting_is_found():
    state = begun(size=2)
    state.exited(ended(1, code=9), 1.0)
    state.join(request(0, world=2), 1.0)
    state.admit(task(2))
    state.join(request(2), 10.0)
    state.join(request(0, world=3), 12.0)
    state.heartbeat(task(0), "running", {}, 13.0)
    state.heartbeat(task(2), "running", {}, 13.0)  # from before, relayed by its agent
    assert state.find_silent(27.0, 1000.0) == {}
    assert state.find_silent(28.0, 1000.0) == {task(2): 15.0}
    assert state.find_silent(50.0, 1000.0) == {}


def test_a_newcomer_giving_signs_is_a_member():
    state = begun(size=2)
    state.exited(ended(1, code=9), 1.0)
    state.join(request(0, world=2), 1.0)
    state.admit(task(2))
    state.join(request(2), 10.0)
    state.join(request(0, world=3), 12.0)
    state.heartbeat(task(2), "running", {}, 12.0 + TIMING.relay)
    assert state.find_silent(500.0, 1000.0) == {}


def with_newcomer():
    """A job whose second rank, a newcomer, was taken in at 12 s."""
    state = begun(size=2)
    state.exited(ended(1, code=9), 1.0)
    state.join(request(0, world=2), 1.0)
    state.admit(task(2))
    state.join(request(2), 10.0)
    state.join(request(0, world=3), 12.0)
    assert order(state) == [0, 2]
    return state


def test_a_newcomer_with_state_is_a_member():
    state = with_newcomer()
    state.heartbeat(task(2), "running", {"change": {"generation": 3, "connect": 0.1, "sync": 0.1}}, 12.2)
    state.exited(ended(0, code=9), 13.0)
    state.join(request(2, world=4), 13.0)
    assert state.find_silent(500.0, 1000.0) == {}  # a second world makes it no newcomer again


def test_a_newcomer_is_kept_for_the_state():
    state = with_newcomer()
    state.exited(ended(0, code=9), 13.0)
    assert state.find_silent(500.0, 1000.0) == {}


def test_an_error_of_the_program_ends_the_job():
    state = begun()
    error = ExceptionRecord("ValueError", "the data is rotten", "", 1.0)
    state.exited(ended(1, code=1, exception=error), 1.0)
    state.join(request(0, world=2), 1.5)
    outcome = state.outcome(request(0, world=2))
    assert isinstance(outcome, RendezvousFailure)
    assert "an error of the program ends an elastic job, too; first, rank 1 (worker:1" in outcome.message


def test_a_program_error_is_the_first_cause():
    state = begun()
    state.exited(replace(ended(1, code=None), signal=signal.SIGKILL), 1.0)
    for index in (0, 2):
        state.join(request(index, world=2), 1.5)
    state.admit(task(3))
    error = ExceptionRecord("ConfigError", "cannot read the job key", "", 3.0)
    state.exited(ended(3, code=1, exception=error), 3.0)
    assert "ends an elastic job, too; first, rank 3 (worker:3" in state.failure.message


@pytest.mark.parametrize("note", ["it did not come when the world changed", ""])
def test_a_program_error_counts_despite_a_kill(note):
    error = ExceptionRecord("ValueError", "the data is rotten", "", 1.0)
    record = replace(ended(1, code=None, exception=error), signal=signal.SIGKILL, note=note)
    assert record.raised
    state = begun()
    state.exited(record, 1.0)
    state.join(request(0, world=2), 1.5)
    assert state.failure is not None


def test_a_lost_task_does_not_come_back():
    state = begun()
    state.exited(replace(ended(1, code=None), reason=ExitReason.LOST), 1.0)
    with pytest.raises(Refusal, match="worker:1 was removed from the job: its process has ended"):
        state.join(request(1, world=2), 2.0, lost=0)
    for index in (0, 2):
        state.join(request(index, world=2), 3.0)
    assert order(state) == [0, 2]


def test_only_members_may_report_lost_ranks():
    state = begun(size=2)
    state.admit(task(2))
    state.join(request(2), 1.0, lost=0)  # of a world that it has been in
    assert state.deadline is None
    state.exited(ended(0, code=1), 2.0)
    state.join(request(1, world=2), 3.0, lost=0)
    assert order(state) == [1, 2]


def test_a_leaver_may_rejoin_a_fixed_job():
    state = Membership(workers(3), 10.0, longest_gap=math.inf)
    for index in range(3):
        state.join(request(index), 0.0)
    for index in range(3):
        state.leave(task(index), 1.5)
        state.join(request(index, world=2), 2.0)
    assert state.world.generation == 2


def test_nobody_waits_for_a_member_that_ends():
    state = begun()
    state.leave(task(1), 1.0, ends=True)
    for index in (0, 2):
        state.join(request(index, world=2), 1.5)
    assert order(state) == [0, 2]
    assert state.failure is None
    assert state.changes[0].cause == ""
    state.exited(ended(1, code=3), 4.0)
    assert state.changes[0].cause == "worker:1 exited with code 3"


def test_ends_are_judged_when_all_end():
    state = begun(2)
    for index in range(2):
        state.leave(task(index), 1.0, ends=True)
    assert state.failure is None
    assert not state.training_ended
    state.exited(ended(0), 1.5)
    assert state.training_ended
    state.exited(ended(1, code=1), 1.5)
    assert state.failure is None


def test_a_preempted_member_leaves_when_it_joins():
    state = begun()
    state.ask_to_leave([task(1)], "SIGTERM", 1.0)
    assert state.pending == 2
    assert state.leaving == {task(1): "SIGTERM"}
    assert not state.leavers
    state.join(request(0, world=2), 2.0)
    assert state.outcome(request(0, world=2)) is None  # it may still complete what it does
    state.join(request(1, world=2), 2.1)
    assert state.outcome(request(1, world=2)) == LeaveRequest("SIGTERM")
    assert state.leavers == {task(1): "SIGTERM"}
    state.join(request(2, world=2), 2.2)
    assert order(state) == [0, 2]
    assert state.pending == 0
    state.exited(ended(1), 3.0)
    assert not state.leaving


def test_a_waiting_rank_leaves_at_once():
    state = begun()
    state.join(request(1, world=2), 1.0)
    state.admit(task(3))
    state.join(request(3), 1.1)
    state.ask_to_leave([task(1), task(3)], "SIGTERM", 1.2)
    for index, world in ((1, 2), (3, 1)):
        assert state.outcome(request(index, world=world)) == LeaveRequest("SIGTERM")
    for index in (0, 2):
        state.join(request(index, world=2), 2.0)
    assert order(state) == [0, 2]


def test_the_first_world_forms_without_preempted_nodes():
    state = Membership(workers(3), 10.0, longest_gap=math.inf, bounds=Bounds(1, 3, 3, 5.0))
    state.ask_to_leave([task(2)], "SIGTERM", 0.0)
    for index in range(3):
        state.join(request(index), 1.0)
    assert state.outcome(request(2)) == LeaveRequest("SIGTERM")
    assert state.expire(11.0) == {}
    assert order(state) == [0, 1]


def test_a_fixed_job_can_spare_no_rank():
    state = Membership(workers(2), 10.0, longest_gap=math.inf)
    for index in range(2):
        state.join(replace(request(index), size=2), 0.0)
    state.ask_to_leave([task(1)], "SIGTERM", 1.0)
    for index in range(2):
        state.leave(task(index), 2.0)
        state.join(replace(request(index, world=2), size=2), 2.0)
    assert "1 rank is left, at least 2 are needed" in state.failure.message


def test_an_uncaught_loss_says_how_to_catch():
    state = begun(2)
    state.exited(ended(1, code=None), 1.0)
    error = ExceptionRecord("AbortedError", "PEER_LOST: rank 1 is gone", "", 1.0, ErrorKind.PEER)
    state.exited(ended(0, code=1, exception=error), 2.0)
    assert "(ranks continue after a loss in a function of elastic.run, or in fit with" in state.failure.message
    state = begun(2)
    state.exited(ended(1, code=None), 1.0)
    state.exited(ended(0, code=None), 2.0)
    assert "no rank is left whose state others could take; first," in state.failure.message


def test_a_job_fails_when_all_must_leave():
    state = begun(2)
    state.ask_to_leave([task(0), task(1)], "SIGTERM", 1.0)
    assert state.failure is None  # they may complete what they do
    for index in range(2):
        state.join(request(index, world=2), 2.0)
        assert state.outcome(request(index, world=2)) == LeaveRequest("SIGTERM")
    assert "no rank is left whose state others could take" in state.failure.message


def test_all_leaving_early_fails_the_job_clearly():
    state = Membership(workers(2), 10.0, longest_gap=math.inf, bounds=Bounds(1, 2, 2, 30.0))
    state.ask_to_leave([task(0), task(1)], "slot 0 of h is gone", 1.0)
    state.join(request(0), 2.0)
    state.exited(ended(0), 3.0)
    state.exited(ended(1), 3.0)
    state.close_admission(4.0)
    message = "all ranks left the job before the first of them began to train: worker:0 left: slot 0 of h is gone"
    assert message in state.failure.message


def test_ending_well_on_request_completes_no_training():
    state = begun(2)
    state.ask_to_leave([task(0)], "SIGTERM", 1.0)
    state.exited(ended(0), 2.0)
    assert not state.training_ended
    state.exited(ended(1), 3.0)  # and neither had it gone on
    assert state.training_ended
    assert state.failure is None


def test_an_error_while_preempted_costs_one_rank():
    state = begun()
    state.ask_to_leave([task(1)], "SIGTERM", 1.0)
    error = ExceptionRecord("KeyboardInterrupt", "", "", 1.0)
    state.exited(replace(ended(1, code=1, exception=error), leaving=True), 1.5)
    for index in (0, 2):
        state.join(request(index, world=2), 2.0)
    assert order(state) == [0, 2]
