"""How a launcher is stopped that runs on another thread, where no signal is handled."""

import queue
import signal
import threading

from time_limits import within

from tfcollective.launch.system.signals import DeferredCall, StopSwitch, forward_signals


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


def test_a_launcher_that_begins_after_the_stop_gets_it():
    switch, received_numbers = StopSwitch(), []
    switch.stop(signal.SIGINT)
    with switch.held(), forward_signals((), received_numbers.append) as received:
        assert received == received_numbers == [signal.SIGINT]


def test_a_launcher_that_does_not_hold_the_switch_gets_nothing():
    switch, received_numbers = StopSwitch(), []
    with switch.held():
        pass
    with forward_signals((), received_numbers.append):
        switch.stop(signal.SIGTERM)
    assert received_numbers == []


def test_a_signal_that_comes_before_the_call_is_open_is_kept():
    received_numbers = []
    deferred = DeferredCall()
    deferred(signal.SIGTERM)
    assert received_numbers == []
    deferred.open(received_numbers.append)
    deferred(signal.SIGINT)
    assert received_numbers == [signal.SIGTERM, signal.SIGINT]
