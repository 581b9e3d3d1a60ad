"""Agents that mpirun starts do what every platform does."""

import re

import pytest
from external_engines import path_with_mpi4py
from launching import JOIN, words_of
from provider_contract import Platform, ProviderContract

pytestmark = [pytest.mark.engines, pytest.mark.multiprocess, pytest.mark.timeout(600)]


class Mpi(Platform):
    """Two ranks on this machine, each with an agent that mpirun has started."""

    arguments = ("--engine", "mpi", "-np", "2")
    silence = 30.0
    key_in_variables = True

    def __init__(self, folder, *options, **environ):
        self.arguments = (*Mpi.arguments, *options)
        self.env = {**path_with_mpi4py(folder), **environ}

    def agents(self, job):
        """Without mpirun, whose command line names the agent, too."""
        found = [(one, words_of(one)) for one in job.processes()]
        return [one for one, words in found if words[-4:-1] == ["agent", "--mpi", "--join"] and words[0] != "mpirun"]


class TestMpi(ProviderContract):
    @pytest.fixture
    def platform(self, tmp_path_factory):
        return Mpi(tmp_path_factory.mktemp("mpi4py"))


def test_restarted_ranks_have_their_gpus_and_logs(tmp_path):
    """What docs/platforms.md says of them."""
    program = (
        f"{JOIN}\nc = join(); restarts = os.environ['TFCOLLECTIVE_RESTARTS']\n"
        "print('start', restarts, rank, os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
        "if restarts == '0': wait_until(2, 'running'); sys.exit(3) if rank == 1 else time.sleep(600)\n"
        "c.call(Leave(me.task))"
    )
    logs = tmp_path / "logs"
    options = ("--max-restarts", "1", "--gpus-per-proc", "1", "--log-dir", str(logs))
    with Mpi(tmp_path, *options, CUDA_VISIBLE_DEVICES="4,6").start(program) as job:
        code, out, err = job.finish(120)
        job.wait_until_gone(10.0)
    assert code == 0, err
    assert sorted(re.findall(r"start (\d \d \d)", out)) == ["0 0 4", "0 1 6", "1 0 4", "1 1 6"]
    assert "start 0 1 6" in (logs / "rank.1" / "stdout").read_text()
    assert "start 1 1 6" in (logs / "restart.1" / "rank.1" / "stdout").read_text()
