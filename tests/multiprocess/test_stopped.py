"""Processes that are stopped by a signal: a stopped launcher delays no other job, a stopped rank is awaited."""

import contextlib
import subprocess
import sys
import threading
import time

import psutil
import pytest
from launching import Run, environment_of, gone, until, words_of
from time_limits import within

from tfcollective._base.codec import encode_line
from tfcollective._base.job_keys import new_key
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._base.timing import TIMING
from tfcollective._control.serve.server import CoordinatorServer
from tfcollective._control.wire.protocol import ServerOptions
from tfcollective._launch.agent.protocol import AgentConfig, WorkerPlan
from tfcollective._launch.nodes.provider import NodeSettings
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.platforms.commands import own_agent
from tfcollective._launch.platforms.local import LocalLauncher
from tfcollective._launch.running.job import new_job_id

pytestmark = pytest.mark.multiprocess

SLEEP = (sys.executable, "-c", "import time; time.sleep(1000)")


def agents():
    return [one for one in psutil.Process().children() if "tfcollective._launch.agent" in words_of(one)]


def test_a_stopped_agents_job_is_ended():
    outcomes = []
    spec = JobSpec(SLEEP, 2, host_timeout=5.0)
    job = threading.Thread(target=lambda: outcomes.append(LocalLauncher().run(spec)), daemon=True)
    job.start()
    until(lambda: agents() and len(agents()[0].children()) == 2, 60)
    (agent,) = agents()
    ranks = agent.children()
    agent.suspend()
    job.join(within(90))
    assert outcomes[0].agent_failure == (
        f"the agent (pid {agent.pid}) sent no heartbeat for 5 s (stopped?) and was killed; "
        "its processes have been ended"
    )
    assert not outcomes[0].host_lost
    until(lambda: all(map(gone, ranks)))


@contextlib.contextmanager
def agent_with_a_rank(host_timeout=TIMING.host_timeout, argv=SLEEP, env=None):
    """An agent as a launcher starts it; yields it, its rank and the coordinator."""
    key, job_id = new_key(), new_job_id()  # other tests have agents on this machine, too
    with CoordinatorServer(ServerOptions(job_id, key, workers(1), 100.0)) as server:
        agent = subprocess.Popen(own_agent(), stdin=subprocess.PIPE, bufsize=0)
        try:
            worker = WorkerPlan(TaskKey.parse("worker:0"), 0, argv, env or {})
            config = AgentConfig(job_id, (worker,), host_timeout=host_timeout)
            agent.stdin.write(encode_line(NodeSettings(str(server.endpoint), key.hex(), "here", ("lo",))))
            agent.stdin.write(encode_line(config))
            until(lambda: psutil.Process(agent.pid).children(), 60)
            (rank,) = psutil.Process(agent.pid).children()
            yield agent, rank, server
        finally:
            agent.kill()
            agent.wait()
            agent.stdin.close()


def wait_for_beats(server, count):
    """Waits until the rank has sent so many more heartbeats; returns when (s) it sent the last one."""
    seen = set()
    until(lambda: seen.add(server.snapshot().tasks[0].said) or len(seen) > count, 60)
    return max(seen)


def test_a_stopped_agents_rank_heartbeats_itself():
    argv = (sys.executable, "-c", "import time, tfcollective; tfcollective.init(); time.sleep(1000)")
    env = {"TFCOLLECTIVE_TASK": "worker:0", "TFCOLLECTIVE_SIZE": "1"}
    with agent_with_a_rank(argv=argv, env=env) as (agent, _, server):
        said = wait_for_beats(server, 2)
        psutil.Process(agent.pid).suspend()
        time.sleep(TIMING.short_reply)  # what the agent had sent has come
        assert wait_for_beats(server, 2) > said


def test_ranks_end_when_the_coordinator_is_gone():
    """Its stdin stays open: the process that holds it may have been stopped."""
    with agent_with_a_rank(host_timeout=0.5) as (agent, rank, server):
        server.close()
        assert agent.wait(within(60)) == 75
        until(lambda: gone(rank))


def test_ranks_end_with_their_agents_stdin():
    with agent_with_a_rank() as (agent, rank, _):
        agent.stdin.close()
        assert agent.wait(within(60)) == 75
        until(lambda: gone(rank))


@pytest.mark.long
def test_the_last_reports_outlast_a_stopped_launcher():
    with agent_with_a_rank(argv=(sys.executable, "-c", "import time; time.sleep(1)")) as (agent, _, server):
        server._loop.call_soon_threadsafe(time.sleep, 2 * TIMING.reply)
        assert agent.wait(within(60)) == 0
        (view,) = server.snapshot().tasks
        assert view.exit is not None
        assert view.exit.exit_code == 0


def test_a_rank_does_not_outlive_its_agent():
    with agent_with_a_rank() as (agent, rank, _):
        agent.kill()
        until(lambda: gone(rank))


@pytest.mark.long
def test_a_briefly_stopped_rank_goes_on(tmp_path):
    program = """
import os, sys, numpy, tfcollective
from tfcollective._runtime.communicator import Sum
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
