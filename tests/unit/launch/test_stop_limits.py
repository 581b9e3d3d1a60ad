"""What is handed on of :mod:`tfcollective._base.timing`."""

import signal

import pytest
from tfcollective_launchers.mpi import MpiOptions, mpirun_command

from tfcollective._base.timing import TIMING
from tfcollective._launch.agent.policy import StopCause
from tfcollective._launch.agent.protocol import StopCommand
from tfcollective._launch.nodes.live import stop_limit
from tfcollective._launch.plan.spec import JobSpec

GRACES = [0.0, 10.0, 600.0]


@pytest.mark.parametrize("cause", StopCause)
def test_an_agent_has_its_processes_grace(cause):
    asked = cause is StopCause.REQUEST
    assert stop_limit(StopCommand(signal.SIGTERM, cause), 7.0) == TIMING.stop_limit + (7.0 if asked else 0.0)


@pytest.mark.parametrize("grace", GRACES)
def test_mpirun_kills_agents_after_their_limit(grace):
    words = mpirun_command((), 1, MpiOptions(), ("agent",), {}, grace)
    kills_after = float(words[words.index("odls_base_sigkill_timeout") + 1])
    assert stop_limit(StopCommand(signal.SIGTERM), grace) < kills_after


def test_a_job_begins_with_these():
    assert (JobSpec.host_timeout, JobSpec.grace) == (TIMING.host_timeout, TIMING.grace)
