"""The nodes of an allocation do what every platform does."""

import re

import pytest
from launching import JOIN, words_of
from provider_contract import Platform, ProviderContract

pytestmark = [pytest.mark.slurm, pytest.mark.multiprocess, pytest.mark.timeout(600)]


class Allocated(Platform):
    """An allocation of two nodes with a rank each."""

    arguments = ("--launcher", "slurm")  # as many ranks as the allocation has tasks

    def __init__(self, environ):
        self.env = environ

    def agents(self, job):
        """Without srun, whose command line names the agent, too."""
        return [one for one in super().agents(job) if not words_of(one)[0].endswith("srun")]


def test_a_node_with_slow_prolog_is_awaited(slurm):
    """Longer than SLURM's MessageTimeout, after which srun gives up."""
    program = f"{JOIN}\nc = join(); print('I am', rank, os.environ['SLURMD_NODENAME']); c.call(Leave(me.task))"
    with slurm.allocation(1, 1) as environ:
        platform = Allocated(environ)
        with slurm.held("node2"):
            job = platform.start(program)
            said = next(line for line in job.process.stderr if "trying again" in line)
            assert "srun has not launched the agent on node2" in said
        with job:
            code, out, err = job.finish(120)
        assert code == 0, err
        assert sorted(re.findall(r"I am (\d \w+)", out)) == ["0 node1", "1 node2"]


class TestSlurm(ProviderContract):
    @pytest.fixture
    def platform(self, slurm):
        with slurm.allocation(1, 1) as environ:
            yield Allocated(environ)
