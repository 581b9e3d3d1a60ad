import signal

import pytest

from tfcollective._base.timing import Timing
from tfcollective._launch.agent.policy import Stop, StopCause, next_stop, stop_schedule

LIMITS = Timing(settle=1.5, terminate=2.0, interrupt=1.0, grace=30.0)
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (Stop(StopCause.FAILURE, 10.0), ((11.5, signal.SIGTERM), (13.5, signal.SIGKILL))),
        (Stop(StopCause.ELSEWHERE, 10.0), ((11.5, signal.SIGTERM), (13.5, signal.SIGKILL))),
        (Stop(StopCause.ABANDONED, 10.0), ((10.0, signal.SIGTERM), (12.0, signal.SIGKILL))),
        (Stop(StopCause.REQUEST, 10.0), ((10.0, signal.SIGTERM), (40.0, signal.SIGKILL))),
        (
            Stop(StopCause.REQUEST, 10.0, signal.SIGINT),
            ((10.0, signal.SIGINT), (11.0, signal.SIGTERM), (41.0, signal.SIGKILL)),
        ),
        (Stop(StopCause.REQUEST, 10.0, signal.SIGKILL), ((10.0, signal.SIGKILL),)),
        (Stop(StopCause.PREEMPTION, 10.0), ((38.0, signal.SIGTERM), (40.0, signal.SIGKILL))),
    ],
)
def test_schedule(stop, expected):
    assert stop_schedule(stop, LIMITS) == expected


@pytest.mark.parametrize("cause", list(StopCause))
@pytest.mark.parametrize("number", NUMBERS)
def test_only_a_request_leaves_time_for_a_checkpoint(cause, number):
    when, last = stop_schedule(Stop(cause, 0.0, number), Timing())[-1]
    assert last == signal.SIGKILL
    if cause in (StopCause.REQUEST, StopCause.PREEMPTION):
        assert when >= 10.0
    else:
        assert when < 4.0  # and the sweep comes after it


@pytest.mark.parametrize("earlier", [cause for cause in StopCause if cause is not StopCause.PREEMPTION])
@pytest.mark.parametrize("cause", [StopCause.FAILURE, StopCause.ELSEWHERE, StopCause.PREEMPTION])
def test_a_failure_while_processes_stop_changes_nothing(earlier, cause):
    assert next_stop(Stop(earlier, 1.0), Stop(cause, 2.0)) is None


@pytest.mark.parametrize("first", NUMBERS)
def test_only_a_repeated_ctrl_c_kills(first):
    earlier = Stop(StopCause.REQUEST, 1.0, first)
    for repeated in (signal.SIGTERM, signal.SIGHUP):
        assert next_stop(earlier, Stop(StopCause.REQUEST, 2.0, repeated)) is None
    again = next_stop(earlier, Stop(StopCause.REQUEST, 2.0, signal.SIGINT))
    assert again == Stop(StopCause.REQUEST, 2.0, signal.SIGKILL)


@pytest.mark.parametrize("earlier", [StopCause.FAILURE, StopCause.ELSEWHERE, StopCause.ABANDONED])
def test_a_request_does_not_delay_an_end(earlier):
    assert next_stop(Stop(earlier, 1.0), Stop(StopCause.REQUEST, 2.0, signal.SIGTERM)) is None


def test_the_end_of_the_launcher_ends_a_grace():
    abandoned = Stop(StopCause.ABANDONED, 2.0)
    assert next_stop(Stop(StopCause.REQUEST, 1.0), abandoned) is abandoned
    assert next_stop(None, abandoned) is abandoned
    assert next_stop(abandoned, Stop(StopCause.ABANDONED, 3.0)) is None


def test_preempted_processes_may_leave_until_the_end():
    asked = Stop(StopCause.PREEMPTION, 1.0)
    for cause in (StopCause.FAILURE, StopCause.PREEMPTION):
        assert next_stop(asked, Stop(cause, 2.0)) is None
    for cause in (StopCause.ELSEWHERE, StopCause.REQUEST, StopCause.ABANDONED):
        later = Stop(cause, 2.0)
        assert next_stop(asked, later) is later


def test_no_grace_leaves_no_time():
    schedule = stop_schedule(Stop(StopCause.PREEMPTION, 10.0), Timing(terminate=2.0, grace=1.0))
    assert schedule == ((10.0, signal.SIGTERM), (12.0, signal.SIGKILL))
