"""TensorBoard's command line, and how long it stays: without a TensorBoard."""

from __future__ import annotations

import pytest

from tfcollective._base.clock import Deadline
from tfcollective._base.errors import ConfigError, LaunchError
from tfcollective._testing.clock import ManualClock
from tfcollective.auxiliary_tasks import tensorboard
from tfcollective.auxiliary_tasks.tensorboard import TensorBoardOptions, TensorBoardProcess, run_tensorboard


def arguments(**options):
    return TensorBoardOptions("logs dir", **options).command()[3:]


def test_the_command_is_a_list_on_loopback():
    plain = ["--logdir", "logs dir", "--host", "127.0.0.1", "--port", "0", "--load_fast", "false"]
    assert arguments() == plain
    assert arguments(extra_args='--tag "a b"') == [*plain, "--tag", "a b"]
    assert arguments(extra_args=["--tag", "a b"]) == [*plain, "--tag", "a b"]
    assert arguments(port=6006, host="10.0.0.1")[2:6] == ["--host", "10.0.0.1", "--port", "6006"]


def test_extra_arguments_replace_ours():
    assert arguments(extra_args="--bind_all --port=7 --load_fast=true") == [
        *("--logdir", "logs dir", "--bind_all", "--port=7", "--load_fast=true")
    ]


@pytest.mark.parametrize("extra", ["--logdir other", "--logdir=other", '--tag "a'])
def test_wrong_extra_arguments_are_refused(extra):
    with pytest.raises(ConfigError, match="extra_args"):
        arguments(extra_args=extra)


class Process:
    alive = True

    def last_lines(self):
        return "why"


def stay(ended_at, linger=30.0, lifetime=float("inf"), dies_at=None):
    """How long it stays, in seconds, when training ends and it dies at these times."""
    clock, process = ManualClock(), Process()

    def pause(seconds):
        assert seconds > 0
        clock.advance(seconds)
        process.alive = dies_at is None or clock.monotonic() < dies_at

    ended = lambda: clock.monotonic() >= ended_at  # noqa: E731
    tensorboard._stay(process, ended, linger, Deadline(lifetime), clock, pause)
    return clock.monotonic()


def test_it_lingers_when_training_has_ended():
    assert stay(ended_at=10.0, linger=5.5) == 15.5
    assert stay(ended_at=0.0, linger=0.0) == 0.0
    assert stay(ended_at=1e9, lifetime=7.25) == 7.25
    assert stay(ended_at=5.0, linger=100.0, lifetime=7.25) == 7.25


def test_its_own_end_is_an_error():
    with pytest.raises(LaunchError, match="ended by itself: why"):
        stay(ended_at=1e9, dies_at=3.0)


def test_without_tensorboard_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"tfcollective\[tensorboard\]"):
        TensorBoardProcess.start(TensorBoardOptions("x"))
    with pytest.raises(ConfigError, match="linger"):
        run_tensorboard(TensorBoardOptions("x"), linger=-1)
