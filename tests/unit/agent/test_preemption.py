"""The notice that a node is preempted; the test advances the clock."""

import signal
import subprocess
from types import SimpleNamespace

import pytest

from tfcollective._base.timing import Timing
from tfcollective._launch.agent import preemption
from tfcollective._launch.agent.preemption import PreemptionWatch
from tfcollective._testing.clock import ManualClock

LIMITS = Timing(preemption_look=2.0, preemption_command=5.0)
COMMAND = ("curl", "-f", "http://metadata/preempted")


class Commands:
    """Instead of processes."""

    def __init__(self):
        self.started, self.error = [], None

    def start(self, argv, environ, cwd, output):
        assert (output, environ, cwd) == (subprocess.DEVNULL, {"A": "b"}, "/there")
        if self.error is not None:
            raise self.error
        self.started.append(SimpleNamespace(argv=argv, pid=100 + len(self.started), returncode=None))
        return self.started[-1]


@pytest.fixture
def clock():
    return ManualClock(10.0)


@pytest.fixture
def commands():
    return Commands()


def watch(clock, commands, file=None, command=()):
    return PreemptionWatch(file, command, {"A": "b"}, "/there", LIMITS, clock, commands.start)


def test_without_file_or_command_nothing_is_polled(clock, commands):
    one = watch(clock, commands)
    one.tick()
    assert one.wake_at is None
    assert not commands.started


def test_a_file_is_looked_for_again_and_again(clock, commands, tmp_path):
    one = watch(clock, commands, str(tmp_path / "notice"))
    for _ in range(3):
        one.tick()
        assert (one.notice, one.wake_at) == ("", clock.monotonic() + 2.0)
        clock.advance(2.0)
    (tmp_path / "notice").touch()
    one.tick()
    assert one.notice == f"there is a file {tmp_path}/notice"
    assert one.wake_at is None


@pytest.mark.parametrize(("status", "says"), [(0, True), (1 << 8, False), (22 << 8, False), (signal.SIGKILL, False)])
def test_exit_code_0_of_the_command_notifies(clock, commands, status, says):
    one = watch(clock, commands, command=COMMAND)
    one.tick()
    one.ended(99, 0)  # another process
    assert not one.notice
    one.ended(100, status)
    assert one.notice == ("the preemption command said so: curl -f http://metadata/preempted" if says else "")
    assert (one.wake_at is None) is says


def test_a_slow_command_is_killed_before_another(clock, commands, monkeypatch, caplog):
    killed = []
    monkeypatch.setattr(preemption, "signal_group", lambda pid, number: killed.append((pid, number)))
    one = watch(clock, commands, command=COMMAND)
    for round_ in range(2):
        one.tick()
        assert len(commands.started) == round_ + 1
        clock.advance(4.0)
        one.tick()
        assert len(killed) == round_
        clock.advance(1.0)
        one.tick()
        assert killed[round_:] == [(100 + round_, signal.SIGKILL)]
        one.ended(100 + round_, signal.SIGKILL)
        clock.advance(2.0)
    assert not one.notice
    assert caplog.text.count("takes longer than 5 s") == 1


def test_a_command_that_cannot_be_run_says_nothing(clock, commands, caplog):
    commands.error = FileNotFoundError(2, "No such file or directory")
    one = watch(clock, commands, command=COMMAND)
    for _ in range(3):
        one.tick()
        clock.advance(2.0)
    assert not one.notice
    assert caplog.text.count("cannot be run: No such file or directory") == 1
