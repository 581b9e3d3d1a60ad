"""Elastic jobs whose agents something else starts: they take in each agent that comes, and go on without one that goes.
All are on this machine, so each agent counts as a host of its own."""

import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import psutil
import pytest
from growing import Growing
from launching import environment_of
from time_limits import within

pytestmark = [pytest.mark.multiprocess, pytest.mark.elastic]


class Joined(Growing):
    """A job that waits for agents."""

    def __init__(self, directory):
        super().__init__(directory)
        self._agents = []
        self._join = []

    @contextmanager
    def waits_for(self, agents, *options):
        """Starts it."""
        waits = ("--wait-for-agents", str(agents), "--key-file", str(self.directory / "key"))
        with ExitStack() as ends, self.runs(*waits, "--network-interface", "lo", *options) as job:
            ends.callback(self._end_agents)
            self._join = next(line for line in job.process.stderr if "agent --join" in line).split()[1:]
            yield job

    def joins(self, *options):
        """One more agent."""
        command = [sys.executable, "-m", "tfcollective", *self._join, *options]
        agent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._agents.append(agent)
        return agent

    def agent_of(self, task):
        """The one that has started the rank of this worker."""
        named = f"worker:{task}"
        for agent in self._agents:
            for one in psutil.Process(agent.pid).children() if agent.poll() is None else []:
                if environment_of(one).get("TFCOLLECTIVE_TASK") == named:
                    return agent
        raise AssertionError(f"no agent has {named}")

    def _end_agents(self):
        for agent in self._agents:
            agent.kill()
            agent.communicate()


@pytest.fixture
def joined(tmp_path):
    return Joined(tmp_path)


@pytest.mark.kill
def test_a_new_agent_replaces_a_lost_one(joined):
    with joined.waits_for(2, "-np", "2", "--min-np", "1"):
        first = [joined.joins() for _ in range(2)]
        joined.comes_to(2)
        joined.agent_of(1).send_signal(signal.SIGKILL)
        joined.comes_to(1)
        joined.joins()
        joined.comes_to_be(0, 2)
        err, ended = joined.ends()
        codes = sorted(agent.wait(within(30)) for agent in first)
    assert codes == [-signal.SIGKILL, 0]
    assert "an agent has joined: " in err
    assert sorted(ended) == [0, 2]


def test_a_job_grows_and_shrinks_with_agents(joined):
    with joined.waits_for(1, "-np", "1", "--min-np", "1", "--max-np", "4"):
        first = joined.joins()
        joined.comes_to(1)
        joined.joins("--slots", "2")
        joined.comes_to(3)
        first.send_signal(signal.SIGTERM)  # as a platform does that wants its machine back
        joined.comes_to(2)
        joined.joins("--slots", "7")
        joined.comes_to(4)
        err, ended = joined.ends()
    assert first.wait(within(30)) == 0
    assert "worker:0 has left gracefully" in err
    assert sorted(ended) == [1, 2, 3, 4]


@pytest.mark.kill
def test_an_agent_that_has_no_rank_stands_by(joined):
    with joined.waits_for(3, "-np", "2", "--min-np", "1"):
        for _ in range(3):
            joined.joins("--slots", "1")
        joined.comes_to(2)
        joined.agent_of(1).send_signal(signal.SIGKILL)
        joined.comes_to_be(0, 2)
        joined.ends()


def test_a_job_begins_with_agents_in_time(joined):
    seconds = round(within(15))  # also what a rank may take until init()
    with joined.waits_for(3, "-np", "3", "--min-np", "1", "--start-timeout", str(seconds)):
        joined.joins()
        joined.comes_to(1)
        joined.joins()
        joined.comes_to(2)
        err, _ = joined.ends()
    assert f"1 of 3 agents came within {seconds} s" in err
    assert "the job begins without the others" in err


def test_too_few_agents_end_the_job(joined):
    with joined.waits_for(2, "-np", "3", "--min-np", "3") as job:
        agents = [joined.joins("--slots", "1") for _ in range(2)]
        code, _, err = job.finish(60)
        refused = [agent.wait(within(30)) for agent in agents]
    assert code != 0
    assert "3 processes do not fit" in err
    assert all(refused)
