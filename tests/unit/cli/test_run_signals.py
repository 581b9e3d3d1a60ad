"""Signals that come while no job handles them."""

import os
import signal

import pytest

from tfcollective._cli.run import ended_by


@pytest.fixture(autouse=True)
def _defaults():
    earlier = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in earlier.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_what_is_open_in_order(number):
    closed = []
    with pytest.raises(SystemExit) as caught, ended_by(signal.SIGTERM, signal.SIGHUP):
        try:
            os.kill(os.getpid(), number)
        finally:
            closed.append(True)
    assert (caught.value.code, closed) == (128 + number, [True])
    assert signal.getsignal(number) is signal.SIG_DFL


def test_what_nohup_ignores_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ended_by(signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
