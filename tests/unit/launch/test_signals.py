"""What asks a launcher to stop that runs on another thread, where no signal is handled."""

import queue
import signal
import threading

from patience import within

from tfcollective.launch.system.signals import Gate, StopSwitch, forward_signals


def follow(switch, ready, told):
    """A launcher on a thread of its own, until it is told to stop."""
    ended = threading.Event()

    def act(number):
        told.put(number)
        ended.set()

    with switch.held(), forward_signals((), act) as received:
        ready.set()
        assert ended.wait(within(20))
    told.put(received)


def test_a_launcher_on_a_thread_is_stopped():
    switch, ready, told = StopSwitch(), threading.Event(), queue.SimpleQueue()
    thread = threading.Thread(target=follow, args=(switch, ready, told), daemon=True)
    thread.start()
    assert ready.wait(within(20))
    switch.stop(signal.SIGTERM)
    thread.join(within(20))
    assert told.get(timeout=within(20)) == signal.SIGTERM
    assert told.get(timeout=within(20)) == [signal.SIGTERM]
    switch.stop(signal.SIGTERM)  # nobody listens any more
    assert told.empty()


def test_what_begins_later_hears_of_it():
    switch, told = StopSwitch(), []
    switch.stop(signal.SIGINT)
    with switch.held(), forward_signals((), told.append) as received:
        assert received == told == [signal.SIGINT]


def test_others_do_not_hear_of_it():
    switch, told = StopSwitch(), []
    with switch.held():
        pass
    with forward_signals((), told.append):
        switch.stop(signal.SIGTERM)
    assert told == []


def test_what_comes_before_the_gate_opens_is_kept():
    told = []
    gate = Gate(told.append)
    gate(signal.SIGTERM)
    assert told == []
    gate.open()
    gate(signal.SIGINT)
    assert told == [signal.SIGTERM, signal.SIGINT]
