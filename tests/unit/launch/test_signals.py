"""Signals for a launcher: those that it heeds, and what stands for one where it runs on another thread."""

import queue
import signal
import threading

import pytest
from time_limits import within

from tfcollective._base.processes import PASSED_ON
from tfcollective._launch.agent.orders import Interrupts
from tfcollective._launch.system.signals import DeferredCall, StopSwitch, forward_signals, heed


def follow(switch, ready, received_numbers):
    """A launcher on a thread of its own, until it is stopped."""
    ended = threading.Event()

    def act(number):
        received_numbers.put(number)
        ended.set()

    with switch.held(), forward_signals((), act) as received:
        ready.set()
        assert ended.wait(within(20))
    received_numbers.put(received)


def test_a_launcher_on_a_thread_is_stopped():
    switch, ready, received_numbers = StopSwitch(), threading.Event(), queue.SimpleQueue()
    thread = threading.Thread(target=follow, args=(switch, ready, received_numbers), daemon=True)
    thread.start()
    assert ready.wait(within(20))
    switch.stop(signal.SIGTERM)
    thread.join(within(20))
    assert received_numbers.get(timeout=within(20)) == signal.SIGTERM
    assert received_numbers.get(timeout=within(20)) == [signal.SIGTERM]
    switch.stop(signal.SIGTERM)  # no launcher is there any longer
    assert received_numbers.empty()


def test_a_launcher_started_after_the_stop_stops():
    switch, received_numbers = StopSwitch(), []
    switch.stop(signal.SIGINT)
    with switch.held(), forward_signals((), received_numbers.append) as received:
        assert received == received_numbers == [signal.SIGINT]


def test_a_launcher_after_the_switch_gets_nothing():
    switch, received_numbers = StopSwitch(), []
    with switch.held():
        pass
    with forward_signals((), received_numbers.append):
        switch.stop(signal.SIGTERM)
    assert received_numbers == []


def test_a_signal_before_the_call_is_kept():
    received_numbers = []
    deferred = DeferredCall()
    deferred(signal.SIGTERM)
    assert received_numbers == []
    deferred.open(received_numbers.append)
    deferred(signal.SIGINT)
    assert received_numbers == [signal.SIGTERM, signal.SIGINT]


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def ignored(request):
    """A signal that this process ignores, as under ``nohup``, or in the background of a shell script."""
    earlier = signal.signal(request.param, signal.SIG_IGN)
    yield request.param
    signal.signal(request.param, earlier)


def test_a_launcher_keeps_ignoring_inherited_ignored_signals(ignored):
    others = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} - {ignored}
    with forward_signals((ignored, *others), lambda number: None) as received:
        signal.raise_signal(ignored)
        assert received == []
        for number in others:
            signal.raise_signal(number)
    assert set(received) == others
    assert signal.getsignal(ignored) is signal.SIG_IGN


def test_an_agent_keeps_ignoring_inherited_ignored_signals(ignored):
    with Interrupts() as interrupts:
        signal.raise_signal(ignored)
        assert interrupts.read() == b""
        signal.raise_signal(signal.SIGCHLD)
        assert interrupts.read() == bytes([signal.SIGCHLD])
    assert signal.getsignal(ignored) is signal.SIG_IGN


def test_a_process_heeds_its_own_signal(ignored):
    heed([ignored])
    with forward_signals([ignored], lambda number: None) as received:
        signal.raise_signal(ignored)
    assert received == [ignored]


@pytest.mark.parametrize("number", PASSED_ON)
def test_a_program_signal_asks_for_no_end(number):
    acted = []
    with forward_signals((signal.SIGTERM, *PASSED_ON), acted.append) as received:
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
    assert (acted, received) == ([number, signal.SIGTERM], [signal.SIGTERM])


def test_an_ignored_sigquit_shows_stacks():
    shown = queue.SimpleQueue()
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    try:
        with forward_signals((signal.SIGTERM,), print, lambda: shown.put("stacks")):
            signal.raise_signal(signal.SIGQUIT)
        assert shown.get(timeout=within(20)) == "stacks"
        assert signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGQUIT, before)
