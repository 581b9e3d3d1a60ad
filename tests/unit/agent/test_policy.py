import signal

import pytest

from tfcollective.agent.policy import Limits, Stop, StopCause, stop_schedule

LIMITS = Limits(grace=1.5, terminate=2.0, request=1.0)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (Stop(StopCause.FAILURE, 10.0), ((11.5, signal.SIGTERM), (13.5, signal.SIGKILL))),
        (Stop(StopCause.ABANDONED, 10.0), ((10.0, signal.SIGTERM), (12.0, signal.SIGKILL))),
        (Stop(StopCause.REQUEST, 10.0), ((10.0, signal.SIGTERM), (12.0, signal.SIGKILL))),
        (
            Stop(StopCause.REQUEST, 10.0, signal.SIGINT),
            ((10.0, signal.SIGINT), (11.0, signal.SIGTERM), (13.0, signal.SIGKILL)),
        ),
        (Stop(StopCause.REQUEST, 10.0, signal.SIGKILL), ((10.0, signal.SIGKILL),)),
    ],
)
def test_schedule(stop, expected):
    assert stop_schedule(stop, LIMITS) == expected


@pytest.mark.parametrize("cause", list(StopCause))
def test_by_default_all_is_over_within_five_seconds(cause):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        when, last = stop_schedule(Stop(cause, 0.0, number), Limits())[-1]
        assert last == signal.SIGKILL
        assert when < 4.0  # and the sweep comes after it
