"""YARN does for a job what every platform does."""

import sys
import uuid

import pytest
from launching import Run, words_of
from provider_contract import Platform, ProviderContract

pytestmark = [pytest.mark.yarn, pytest.mark.timeout(900)]


class OnYarn(Platform):
    """An application of two containers."""

    arguments = (
        *("--launcher", "yarn", "--remote-python", sys.executable),
        *("--task-spec", "worker:instances=2,memory=400MiB,vcores=1"),
    )
    seconds = 300.0
    silence = 60.0  # a submitter may be silent for 30 s; then YARN ends the containers
    unit = "container"

    def start(self, program):
        mark = uuid.uuid4().hex
        return Run((*self.arguments, f"--env=TFC_TEST_MARK={mark}", sys.executable, "-c", program), mark=mark)

    def agents(self, job):
        return [one for one in job.processes() if "tfcollective_launchers.yarn.container" in words_of(one)]


class TestYarn(ProviderContract):
    @pytest.fixture
    def platform(self, yarn):
        return OnYarn()
