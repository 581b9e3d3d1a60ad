"""What the local launcher makes of an agent that does not do its work to the end."""

import signal
import subprocess
import time

import pytest
from patience import within

from tfcollective.agent.config import command_from_line
from tfcollective.coordinator.service import JobView
from tfcollective.coordinator.state import TaskState, TaskView
from tfcollective.failures import ExitRecord
from tfcollective.launch import agent_process
from tfcollective.launch.agent_process import AgentProcess
from tfcollective.launch.job import _unreported
from tfcollective.launch.launcher import JobOutcome
from tfcollective.launch.report import exit_code, render
from tfcollective.tasks import TaskKey


@pytest.fixture
def deaf():
    """An agent that reads nothing, as one that was stopped by a signal does."""
    process = subprocess.Popen(["sleep", "100"], stdin=subprocess.PIPE, bufsize=0)
    yield AgentProcess(process)
    process.kill()


def test_an_agent_that_does_not_stop_when_asked_is_killed(deaf, monkeypatch):
    monkeypatch.setattr(agent_process, "_STOP_LIMIT_S", 0.2)
    begin = time.monotonic()
    deaf.stop(signal.SIGTERM)
    assert f"the agent (pid {deaf.pid}) was killed by SIGKILL" in deaf.wait()
    assert time.monotonic() - begin < within(10)


def test_a_second_request_leaves_it_less_time(deaf, monkeypatch):
    monkeypatch.setattr(agent_process, "_STOP_AGAIN_LIMIT_S", 0.2)
    deaf.stop(signal.SIGINT)
    deaf.stop(signal.SIGINT)
    assert "SIGKILL" in deaf.wait()


def test_an_agent_that_obeys_is_left_in_peace(monkeypatch):
    monkeypatch.setattr(agent_process, "_STOP_LIMIT_S", 0.2)
    process = subprocess.Popen(["head", "-n", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    agent = AgentProcess(process)
    agent.stop(signal.SIGTERM)
    assert agent.wait() is None
    assert command_from_line(process.stdout.read()).signal == signal.SIGTERM


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
    outcome = JobOutcome(exits, seen.initialised, agent_failure=_unreported(seen))
    assert exit_code(outcome) == 70
    assert "nobody has reported how rank 1 (worker:1) ended" in render(outcome)


def test_when_all_are_reported_there_is_nothing_to_say():
    assert _unreported(view(0, 3)) is None
