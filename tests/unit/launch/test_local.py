"""What the local launcher makes of an agent that does not do its work to the end."""

import gc
import os
import signal
import socket
import subprocess
import time
from dataclasses import replace

import pytest
from patience import within

from tfcollective.agent.config import KillCommand, Order, StopCommand
from tfcollective.agent.policy import StopCause
from tfcollective.codec import decode
from tfcollective.control.service import JobView
from tfcollective.control.state import TaskState, TaskView
from tfcollective.failures import ExitRecord
from tfcollective.launch.launcher import JobOutcome
from tfcollective.launch.outcome.report import exit_code, render
from tfcollective.launch.running import agent_process
from tfcollective.launch.running.agent_process import AgentProcess
from tfcollective.launch.running.job import _unreported
from tfcollective.tasks import TaskKey
from tfcollective.timing import TIMING


def held(*command, **options):
    ours, theirs = socket.socketpair()
    with theirs:
        return AgentProcess(subprocess.Popen(command, stdin=theirs.fileno(), bufsize=0, **options), ours)


@pytest.fixture
def limits(monkeypatch):
    """Changes the launcher's limits."""
    return lambda **other: monkeypatch.setattr(agent_process, "TIMING", replace(TIMING, **other))


@pytest.fixture
def deaf():
    """An agent that reads nothing, as one that was stopped by a signal does."""
    agent = held("sleep", "100")
    yield agent
    agent._process.kill()
    agent._process.wait()


def test_an_agent_that_does_not_stop_when_asked_is_killed(deaf, limits):
    limits(stop_limit=0.2)
    begin = time.monotonic()
    deaf.stop(StopCommand(signal.SIGTERM, StopCause.ELSEWHERE))
    assert f"the agent (pid {deaf.pid}) was killed by SIGKILL" in deaf.wait().message
    assert time.monotonic() - begin < within(10)


def test_a_second_ctrl_c_leaves_it_less_time(deaf, limits):
    limits(stop_again=0.2)
    deaf.request_stop(signal.SIGINT)
    deaf.request_stop(signal.SIGINT)
    assert "SIGKILL" in deaf.wait().message


def test_an_order_that_comes_twice_leaves_it_as_much_time(deaf, limits):
    limits(stop_again=0.0)
    for cause in (StopCause.REQUEST, StopCause.ELSEWHERE, StopCause.REQUEST):
        deaf.stop(StopCommand(signal.SIGTERM, cause))
    assert [limit.interval for limit in deaf._limits] == [30.0, 20.0, 30.0]
    deaf._process.kill()
    deaf.wait()


def test_an_agent_that_obeys_is_left_in_peace(limits):
    limits(stop_limit=within(20))  # it has to come up before it can obey
    agent = held("head", "-n", "1", stdout=subprocess.PIPE)
    agent.request_stop(signal.SIGTERM)
    assert agent.wait() is None
    with agent._process.stdout as said:
        assert decode(said.read(), Order, "the order").command.signal == signal.SIGTERM


def test_an_agent_that_never_gives_a_sign_of_life_is_killed(deaf, limits, monkeypatch):
    monkeypatch.setattr(agent_process, "_LOOK_S", 0.1)
    limits(agent_start=0.3)
    assert deaf.wait().message == (
        f"the agent (pid {deaf.pid}) gave no sign of life for 0.3 s (stopped?) and was killed; "
        "its processes have been ended"
    )


def test_an_agent_that_falls_silent_is_killed(limits, monkeypatch):
    monkeypatch.setattr(agent_process, "_LOOK_S", 0.1)
    limits(agent_silent=0.3)
    said = held("sh", "-c", "echo . >&0; kill -STOP $$").wait().message
    assert "gave no sign of life for 0.3 s" in said


def test_signs_of_life_keep_an_agent(limits, monkeypatch):
    monkeypatch.setattr(agent_process, "_LOOK_S", 0.1)
    limits(agent_silent=within(20), agent_start=within(20))
    assert held("sh", "-c", "echo . >&0; sleep 0.5; echo . >&0; sleep 0.5").wait() is None


def test_an_agent_that_nobody_holds_any_more_may_go():
    agent = held("cat")
    process = agent._process
    del agent
    gc.collect()
    assert process.wait(within(20)) == 0


def test_orders_that_do_not_fit_hold_up_nobody(deaf):
    for _ in range(100):
        deaf.send(KillCommand("worker:0", "x" * 65536))
    os.kill(deaf.pid, signal.SIGKILL)
    assert "was killed by SIGKILL" in deaf.wait().message


def view(*codes):
    tasks = [TaskView(TaskKey("worker", rank), rank) for rank in range(len(codes))]
    ended = [
        TaskView(
            one.task, one.rank, TaskState.EXITED, exit=ExitRecord(str(one.task), one.rank, "n", 1, code, None, 1.0)
        )
        for one, code in zip(tasks, codes, strict=True)
        if code is not None
    ]
    silent = [one for one, code in zip(tasks, codes, strict=True) if code is None]
    return JobView((*ended, *silent), None, initialised=True)


def test_a_rank_whose_end_nobody_has_reported_is_no_success():
    seen = view(0, None)
    exits = tuple(task.exit for task in seen.tasks if task.exit is not None)
    outcome = JobOutcome(exits, seen.initialised, agent_failure=_unreported(seen).message)
    assert exit_code(outcome) == 70
    assert "nobody has reported how rank 1 (worker:1) ended" in render(outcome)


def test_when_all_are_reported_there_is_nothing_to_say():
    assert _unreported(view(0, 3)) is None
