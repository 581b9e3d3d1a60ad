"""Our jobs on the hosts of a test bed."""

import dataclasses

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._launch.plan.planner import plan_local
from tfcollective._launch.plan.spec import JobSpec
from tfcollective_bench.testbed_launcher import plan_testbed

ADDRESSES = ("10.0.0.1", "10.0.0.2")


def planned(ranks, addresses=ADDRESSES):
    return plan_testbed(plan_local(JobSpec(("true",), ranks), cores=4, environ={}), addresses)


def test_ranks_go_to_hosts_in_blocks():
    workers = planned(4).workers
    assert [worker.env["TFCOLLECTIVE_BIND_HOST"] for worker in workers] == ["10.0.0.1"] * 2 + ["10.0.0.2"] * 2
    assert [worker.host for worker in workers] == ["10.0.0.1"] * 2 + ["10.0.0.2"] * 2
    assert [worker.rank for worker in workers] == [0, 1, 2, 3]
    assert [worker.local_rank for worker in workers] == [0, 1, 0, 1]


def test_everything_else_stays():
    local = plan_local(JobSpec(("true",), 2), cores=4, environ={})
    for before, after in zip(local.workers, planned(2).workers, strict=True):
        env = {**after.env, "TFCOLLECTIVE_BIND_HOST": before.env["TFCOLLECTIVE_BIND_HOST"]}
        assert dataclasses.replace(after, env=env, local_rank=before.local_rank, host="") == before


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_that_cannot_be_shared_out_equally(ranks):
    with pytest.raises(ConfigError, match="2 hosts"):
        planned(ranks)
    with pytest.raises(ConfigError, match="0 hosts"):
        planned(ranks, ())
