"""Processes that were stopped by a signal: the launching side holds up no other, a rank is waited for."""

import re
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import psutil
import pytest
from launching import Run, environment_of, gone, until, words_of
from patience import within

from tfcollective.agent.config import AgentConfig, WorkerConfig
from tfcollective.codec import encode_line
from tfcollective.control.auth import new_key
from tfcollective.control.server import CoordinatorServer, ServerOptions
from tfcollective.launch.local import LocalLauncher
from tfcollective.launch.plan.spec import JobSpec
from tfcollective.launch.running import agent_process
from tfcollective.tasks import workers
from tfcollective.timing import TIMING

pytestmark = pytest.mark.multiprocess

SLEEP = (sys.executable, "-c", "import time; time.sleep(1000)")


def agents():
    return [one for one in psutil.Process().children() if "tfcollective.agent" in words_of(one)]


def test_the_launcher_ends_a_job_whose_agent_was_stopped(monkeypatch):
    # It may be stopped before its first sign of life.
    monkeypatch.setattr(agent_process, "TIMING", replace(TIMING, agent_silent=3.0, agent_start=30.0))
    outcomes = []
    job = threading.Thread(target=lambda: outcomes.append(LocalLauncher().run(JobSpec(SLEEP, 2))), daemon=True)
    job.start()
    until(lambda: agents() and len(agents()[0].children()) == 2, 60)
    (agent,) = agents()
    ranks = agent.children()
    agent.suspend()
    job.join(within(90))
    silent = rf"the agent \(pid {agent.pid}\) gave no sign of life for (3|30) s \(stopped\?\)"
    assert re.match(silent, outcomes[0].agent_failure)
    until(lambda: all(map(gone, ranks)))


def test_an_agent_ends_its_ranks_when_the_coordinator_is_gone(tmp_path):
    """Its stdin stays open: who holds that may have been stopped."""
    key = new_key()
    worker = WorkerConfig("worker:0", 0, SLEEP, {})
    with CoordinatorServer(ServerOptions("job", key, workers(1), 100.0)) as server:
        config = AgentConfig("job", str(server.endpoint), key.hex(), (worker,), str(tmp_path), lost_after=0.5)
        agent = subprocess.Popen([sys.executable, "-m", "tfcollective.agent"], stdin=subprocess.PIPE, bufsize=0)
        agent.stdin.write(encode_line(config))
        until(lambda: psutil.Process(agent.pid).children())
        (rank,) = psutil.Process(agent.pid).children()
    try:
        assert agent.wait(within(60)) == 75
        until(lambda: gone(rank))
    finally:
        agent.kill()
        agent.stdin.close()


def test_an_agent_ends_when_its_launcher_is_gone_that_has_not_heard_it(tmp_path):
    """A launcher that was stopped has signs of life unread when it is killed."""
    worker = WorkerConfig("worker:0", 0, SLEEP, {})
    config = AgentConfig("job", "127.0.0.1:9", "ab" * 32, (worker,), str(tmp_path))
    launcher, theirs = socket.socketpair()
    with launcher:
        agent = subprocess.Popen([sys.executable, "-m", "tfcollective.agent"], stdin=theirs.fileno(), bufsize=0)
        theirs.close()
        launcher.sendall(encode_line(config))
        launcher.settimeout(within(60))
        assert launcher.recv(1, socket.MSG_PEEK) == b"."
        until(lambda: psutil.Process(agent.pid).children())
        (rank,) = psutil.Process(agent.pid).children()
    try:
        assert agent.wait(within(60)) == 0
        until(lambda: gone(rank))
    finally:
        agent.kill()


@pytest.mark.long
def test_a_rank_that_is_stopped_for_a_while_goes_on(tmp_path):
    program = """
import os, sys, numpy, tfcollective
from tfcollective.communicator import Sum
tfcollective.init()
world = tfcollective.get_communicator()
print("ready", flush=True)
while not world.allreduce(numpy.full(100_000, os.path.exists(sys.argv[1]), numpy.float32), Sum)[0]: pass
tfcollective.shutdown()
"""
    end = tmp_path / "end"
    with Run(("-np", "2", sys.executable, "-c", program, str(end))) as one:
        one.wait_for_line("ready")
        rank = next(p for p in one.processes() if environment_of(p).get("TFCOLLECTIVE_TASK") == "worker:1")
        rank.suspend()
        time.sleep(30)  # longer than any limit for processes that are gone
        end.touch()
        rank.resume()
        code, _, err = one.finish(60)
        assert code == 0, err
