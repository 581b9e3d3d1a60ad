"""The platforms that need nothing but this machine do what every platform does."""

import os
import subprocess
import sys

import psutil
import pytest
from launching import Run
from provider_contract import Platform, ProviderContract
from time_limits import within

pytestmark = pytest.mark.multiprocess


class Local(Platform):
    """Ranks on this machine, whose agent is a child of the launcher."""

    lost = 70
    silence = 0.0


class Joined(Platform):
    """Agents that something else starts: this test."""

    silence = 20.0

    def __init__(self, directory):
        self.key = directory / "job.key"
        self.arguments = (
            "-np",
            "2",
            "--wait-for-agents",
            "2",
            "--key-file",
            str(self.key),
            "--network-interface",
            "lo",
        )
        self.started = []

    def start(self, program):
        job = Run((*self.arguments, "python", "-c", program))
        join = next(line for line in job.process.stderr if "agent --join" in line).split()
        env = {**os.environ, "TFC_TEST_MARK": job.mark}  # as the launcher has it
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.started += [subprocess.Popen([sys.executable, "-m", *join], env=env, **pipes) for _ in range(2)]
        return job

    def said(self, job):
        job.finish(self.seconds)
        return "".join(agent.communicate(timeout=within(self.seconds))[0] for agent in self.started)

    def agents(self, job):
        return [psutil.Process(agent.pid) for agent in self.started if agent.poll() is None]

    def close(self):
        for agent in self.started:
            agent.kill()
            agent.communicate()


class TestLocal(ProviderContract):
    @pytest.fixture
    def platform(self):
        return Local()


@pytest.mark.hosts  # needs nothing but time: until the launcher's silence, and an agent's, is long enough
class TestAgentsOfOthers(ProviderContract):
    @pytest.fixture
    def platform(self, tmp_path_factory):
        joined = Joined(tmp_path_factory.mktemp("joined"))
        yield joined
        joined.close()
