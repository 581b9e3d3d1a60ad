"""Elastic jobs on several hosts: a host that is lost costs its own ranks alone."""

import json
import signal
import sys
from pathlib import Path

import pytest
from launching import environment_of, until

pytestmark = [pytest.mark.hosts, pytest.mark.multiprocess]

WORKER = Path(__file__).parents[1] / "multiprocess" / "elastic_worker.py"
STEPS = 60


def job(hosts, directory, size, generation):
    """Trains on until it has done a step with so many ranks, in this generation or a later one."""
    command = [sys.executable, str(WORKER), str(directory), str(STEPS)]
    ends = ("--env", f"SIZE={size}", "--env", f"GENERATION={generation}")
    return hosts.run("-H", hosts.listed(count=3), "--min-np", "1", *ends, "--", *command)


def ranks_of(one):
    return {
        task: process for process in one.processes() if (task := environment_of(process).get("TFCOLLECTIVE_TASK", ""))
    }


def in_training(directory):
    return lambda: (directory / "began").exists()


def ends(directory):
    return {int(path.stem.partition("-")[2]): json.loads(path.read_text()) for path in directory.glob("end-*.json")}


def check(directory, lost):
    """The ranks on the other hosts have done all steps, the last ones without the lost host's rank."""
    found = ends(directory)
    assert sorted(found) == [task for task in range(3) if task != lost]
    (sizes,) = {tuple(end["sizes"]) for end in found.values()}
    assert len(sizes) >= STEPS
    assert (sizes[0], sizes[-1]) == (3, 2)


def test_a_host_cut_off_costs_its_ranks(hosts, tmp_path):
    with job(hosts, tmp_path, 2, 2) as one:
        until(in_training(tmp_path), 120)
        hosts.cut(3)
        try:
            code, _, err = one.finish(120)
            assert code == 0, err
            assert hosts.addresses[2] in err
            assert "the other ranks continue" in err
            check(tmp_path, 2)
            one.wait_until_gone(30.0)  # the lost host's processes have found out by themselves
        finally:
            hosts.mend(3)


def test_a_killed_agent_costs_its_ranks_alone(hosts, tmp_path):
    with job(hosts, tmp_path, 2, 2) as one:
        until(in_training(tmp_path), 120)
        agent = ranks_of(one)["worker:1"].parent()
        agent.send_signal(signal.SIGKILL)
        code, _, err = one.finish(120)
        assert code == 0, err
        assert f"the agent (pid {agent.pid}) has ended without a report" in err
        check(tmp_path, 1)
        one.wait_until_gone(10.0)


def test_a_killed_rank_returns_on_its_host(hosts, tmp_path):
    with job(hosts, tmp_path, 3, 3) as one:
        until(in_training(tmp_path), 120)
        ranks_of(one)["worker:2"].kill()
        code, _, err = one.finish(120)
        assert code == 0, err
        found = ends(tmp_path)
        assert sorted(found) == [0, 1, 3]
        sizes = found[0]["sizes"]
        assert (sizes[0], min(sizes), sizes[-1]) == (3, 2, 3)
        one.wait_until_gone(10.0)
