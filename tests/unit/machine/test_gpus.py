import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._base.machine.gpus import gpu_variables, visible_gpus
from tfcollective._launch.plan.planner import plan_local
from tfcollective._launch.plan.spec import JobSpec

ONE = {"TFCOLLECTIVE_GPUS_PER_PROC": "1"}
SHARED = {"TFCOLLECTIVE_SHARE_GPUS": "1"}


@pytest.mark.parametrize(
    ("named", "gpus"),
    [
        ("0,1", ("0", "1")),
        ("3", ("3",)),
        ("", ()),
        ("-1", ()),
        ("2,-1,3", ("2",)),
        ("GPU-5a, MIG-7", ("GPU-5a", "MIG-7")),
    ],
)
def test_named_gpus(named, gpus, tmp_path):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": named}, tmp_path) == gpus


def test_all_gpus_of_the_driver(tmp_path):
    for name in ("0000:1b:00.0", "0000:43:00.0"):
        (tmp_path / name).mkdir()
    assert visible_gpus({}, tmp_path) == ("0", "1")
    assert visible_gpus({}, tmp_path / "none") == ()


def test_without_a_wish_ranks_see_all():
    assert gpu_variables(0, 4, {}, ("0",)) == {}


def test_slices_by_slot():
    assert gpu_variables(1, 2, ONE, ("4", "5")) == {"CUDA_VISIBLE_DEVICES": "5"}
    two = {"TFCOLLECTIVE_GPUS_PER_PROC": "2"}
    assert gpu_variables(1, 2, two, ("0", "1", "2", "3")) == {"CUDA_VISIBLE_DEVICES": "2,3"}


def test_too_few_are_refused_unless_shared():
    with pytest.raises(ConfigError, match=r"3 ranks with 1 GPU each need 3 GPUs, but this node has 2.*oversubscribe"):
        gpu_variables(2, 3, ONE, ("0", "1"))
    shared = gpu_variables(2, 3, {**ONE, **SHARED}, ("0", "1"))
    assert shared == {"CUDA_VISIBLE_DEVICES": "0", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    with pytest.raises(ConfigError, match="this node has 0"):
        gpu_variables(0, 1, {**ONE, **SHARED}, ())


def test_the_users_own_setting_of_nccl_stays():
    assert gpu_variables(0, 1, {**SHARED, "NCCL_MULTI_RANK_GPU_ENABLE": "0"}, ()) == {}


def test_local_plans_deal_gpus_out():
    spec = JobSpec(command=("true",), num_proc=2, env=ONE)
    plan = plan_local(spec, cores=2, environ={}, gpus=("6", "7"))
    assert [worker.env["CUDA_VISIBLE_DEVICES"] for worker in plan.workers] == ["6", "7"]
    with pytest.raises(ConfigError, match="this node has 1"):
        plan_local(spec, cores=2, environ={}, gpus=("6",))
