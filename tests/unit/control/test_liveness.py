"""Silence is judged from times alone; the thread sends heartbeats and notices a silent coordinator."""

from __future__ import annotations

import math
import threading

import pytest
from launching import until
from manual_clock import ManualClock
from time_limits import within

from tfcollective._base.clock import LivenessTracker
from tfcollective._base.errors import CoordinatorError
from tfcollective._control.client.liveness import Heartbeat


def test_silence_lasts_from_the_last_sign_of_life() -> None:
    tracker = LivenessTracker[str](math.inf)
    tracker.heard("a", 100.0)
    tracker.heard("b", 103.0)
    assert (tracker.silence("a", 104.0), tracker.silence("b", 104.0)) == (4.0, 1.0)
    assert tracker.silent(7.0, 106.9) == ()
    assert tracker.silent(7.0, 107.0) == ("a",)
    tracker.heard("a", 108.0)
    assert tracker.silent(7.0, 110.0) == ("b",)
    assert tracker.silent(1.0, 110.0) == ("b", "a")


def test_none_but_those_that_were_heard_are_expected() -> None:
    tracker = LivenessTracker[str](math.inf)
    tracker.heard("a", 0.0)
    tracker.heard("b", 0.0)
    tracker.forget("a")
    tracker.forget("never")
    assert ("a" in tracker, "b" in tracker, len(tracker)) == (False, True, 1)
    assert tracker.silent(1.0, 9.0) == ("b",)
    with pytest.raises(KeyError):
        tracker.silence("a", 9.0)


def test_a_listeners_pause_is_no_silence() -> None:
    """A process that was stopped finds what was said meanwhile only after it has looked at its clock."""
    tracker = LivenessTracker[str](2.0)
    tracker.heard("a", 0.0)
    assert tracker.silence("a", 1.0) == 1.0
    assert tracker.silence("a", 1001.0) == 3.0
    assert tracker.silent(5.0, 1002.5) == ()
    assert tracker.silent(5.0, 1003.0) == ("a",)


class Coordinator:
    """Answers while it is up."""

    def __init__(self) -> None:
        self.beats = 0
        self.down = False

    def beat(self) -> None:
        if self.down:
            raise CoordinatorError("no answer")
        self.beats += 1


def test_a_coordinator_is_lost_after_repeated_failures() -> None:
    coordinator, clock, lost = Coordinator(), ManualClock(), []
    heart = Heartbeat(coordinator.beat, lost.append, 30.0, clock=clock)
    assert heart.beat()
    coordinator.down = True
    clock.advance(1000)  # this process was stopped, and perhaps the network with it
    assert heart.beat()
    coordinator.down = False
    assert heart.beat()
    coordinator.down = True
    for _ in range(29):
        clock.advance(1)
        assert heart.beat()
    clock.advance(1)
    assert not heart.beat()
    assert lost == ["the coordinator has not answered for 30 s: no answer"]


def test_the_limit_may_be_changed_meanwhile() -> None:
    coordinator, clock, lost = Coordinator(), ManualClock(), []
    heart = Heartbeat(coordinator.beat, lost.append, 30.0, clock=clock)
    heart.limit = 5.0
    coordinator.down = True
    clock.advance(1000)
    assert heart.beat()
    clock.advance(1000)
    assert not heart.beat()


def test_the_thread_beats_until_it_is_stopped() -> None:
    coordinator = Coordinator()
    heart = Heartbeat(coordinator.beat, pytest.fail, interval=0.01)
    heart.start()
    until(lambda: coordinator.beats >= 3)
    heart.stop(within(20))
    assert not heart._thread.is_alive()


def test_the_thread_reports_a_lost_coordinator_once() -> None:
    coordinator, lost, said = Coordinator(), [], threading.Event()
    coordinator.down = True

    def on_lost(cause: str) -> None:
        lost.append(cause)
        said.set()

    heart = Heartbeat(coordinator.beat, on_lost, limit=0.05, interval=0.01)
    heart.start()
    assert said.wait(within(20))
    heart._thread.join(within(20))
    assert len(lost) == 1
