"""Silence is judged from times alone; the thread sends heartbeats and notices a silent coordinator."""

from __future__ import annotations

import math
import threading

import pytest
from launching import until
from time_limits import within

from tfcollective._base.clock import LivenessTracker
from tfcollective._base.errors import CoordinatorError
from tfcollective._control.client.liveness import Heartbeat
from tfcollective._testing.clock import ManualClock


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
    heart.beat()
    coordinator.down = True
    clock.advance(1000)  # this process was stopped, and perhaps the network with it
    heart.beat()
    coordinator.down = False
    heart.beat()
    coordinator.down = True
    for _ in range(29):
        clock.advance(1)
        heart.beat()
    assert lost == []
    clock.advance(1)
    heart.beat()
    assert lost == ["the coordinator has not answered for 30 s: no answer"]


def test_a_lost_coordinator_is_reported_once_a_limit() -> None:
    coordinator, clock, lost = Coordinator(), ManualClock(), []
    heart = Heartbeat(coordinator.beat, lost.append, 30.0, clock=clock)
    coordinator.down = True
    for second in range(1, 75):
        clock.advance(1)
        heart.beat()
        assert len(lost) == second // 30


def test_the_limit_may_be_changed_meanwhile() -> None:
    coordinator, clock, lost = Coordinator(), ManualClock(), []
    heart = Heartbeat(coordinator.beat, lost.append, 30.0, clock=clock)
    heart.limit = 5.0
    coordinator.down = True
    clock.advance(1000)
    heart.beat()
    assert lost == []
    clock.advance(1000)
    heart.beat()
    assert len(lost) == 1


def test_the_thread_beats_until_it_is_stopped() -> None:
    coordinator = Coordinator()
    heart = Heartbeat(coordinator.beat, pytest.fail, interval=0.01)
    heart.start()
    until(lambda: coordinator.beats >= 3)
    heart.stop(within(20))
    assert not heart._thread.is_alive()


def test_heartbeats_go_on_after_a_lost_coordinator() -> None:
    """A rank of an elastic job may outlive the loss, and would be taken for a stopped one without them."""
    coordinator, said = Coordinator(), threading.Event()
    coordinator.down = True
    heart = Heartbeat(coordinator.beat, lambda cause: said.set(), limit=0.05, interval=0.01)
    heart.start()
    assert said.wait(within(20))
    coordinator.down = False
    until(lambda: coordinator.beats >= 2)
    heart.stop(within(20))


def test_who_hurries_waits_for_no_answer() -> None:
    answers, asked = threading.Semaphore(0), threading.Semaphore(0)

    def beat() -> None:
        asked.release()
        assert answers.acquire(timeout=within(60))

    heart = Heartbeat(beat, pytest.fail, interval=3600.0)
    heart.start()
    assert asked.acquire(timeout=within(20))
    heart.hurry()  # returns though the coordinator does not answer
    answers.release()
    assert asked.acquire(timeout=within(20))
    answers.release()
    heart.stop(within(20))
    assert not heart._thread.is_alive()


def test_what_hurries_is_sent_before_the_end() -> None:
    sent, published = [], ["first"]
    heart = Heartbeat(lambda: sent.append(published[-1]), pytest.fail, interval=3600.0)
    heart.start()
    until(lambda: bool(sent))
    published.append("last")
    heart.hurry()
    heart.stop(within(20))
    assert sent == ["first", "last"]
