import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._base.task_specs import (
    NodeLabel,
    TaskSpec,
    allreduce_topology,
    auxiliary_tasks_of,
    check_task_specs,
    least_trainers_of,
    memory_in_mib,
    single_server_topology,
    trainers_of,
)


@pytest.mark.parametrize(
    ("memory", "mib"),
    [
        (512, 512),
        (512.2, 513),
        ("512", 512),
        ("2 GiB", 2048),
        ("2gib", 2048),
        ("2 Gi", 2048),
        ("2 G", 1908),
        ("2 GB", 1908),
        ("1.5 GiB", 1536),
        (".5GiB", 512),
        ("1 TiB", 1 << 20),
        ("1 PiB", 1 << 30),
        ("1048577 b", 2),
        ("1 kb", 1),
        ("300 MB", 287),
    ],
)
def test_memory_is_read_as_whole_mebibytes(memory, mib):
    assert memory_in_mib(memory) == mib
    assert TaskSpec(memory, 1).memory == TaskSpec(memory, 1).memory_mib == mib


@pytest.mark.parametrize(
    "memory",
    [
        "",
        "GiB",
        "2 XiB",
        "2 bb",
        "2 ib",
        "-2 GiB",
        "1e3",
        "two",
        0,
        -5,
        "0 GiB",
        float("nan"),
        float("inf"),
        True,
        None,
    ],
)
def test_other_amounts_of_memory_are_refused(memory):
    with pytest.raises(ConfigError, match="memory: "):
        memory_in_mib(memory)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vcores": 0}, "vcores: expected 1 or more, got 0"),
        ({"vcores": 1.5}, "vcores: expected 1 or more, got 1.5"),
        ({"vcores": True}, "vcores: expected 1 or more, got True"),
        ({"instances": 0}, "instances: expected 1 or more, got 0"),
        ({"instances": 3, "min_instances": 4}, "min_instances: there are 3 instances, got 4"),
        ({"min_instances": -1}, "min_instances: expected 0 or more, got -1"),
        ({"min_instances": 0.5}, "min_instances: expected 0 or more, got 0.5"),
        ({"nb_proc_per_worker": 0}, "nb_proc_per_worker: expected 1 or more, got 0"),
        ({"nb_proc_per_worker": 5}, "nb_proc_per_worker: 5 processes need 5 vcores or more, got 4"),
        ({"nb_proc_per_worker": 3, "gpus": 2}, "nb_proc_per_worker: 3 processes need 3 gpus or more, or 0, got 2"),
        ({"gpus": -1}, "gpus: expected 0 or more, got -1"),
        ({"label": None}, "label: "),
        ({"tb_termination_timeout_seconds": -2}, "tb_termination_timeout_seconds: expected a number, 0 or more, or -1"),
        ({"tb_termination_timeout_seconds": "soon"}, "tb_termination_timeout_seconds: expected a number"),
        ({"tb_model_dir": 3}, "tb_model_dir: expected a text"),
        ({"tb_extra_args": ["--x"]}, "tb_extra_args: expected a text"),
    ],
)
def test_a_bad_field_is_named_with_its_limit(values, message):
    with pytest.raises(ConfigError, match=message):
        TaskSpec(**{"memory": "1 GiB", "vcores": 4, **values})


def test_testbedels_are_known_ones_or_any_text():
    assert TaskSpec(1, 1).label == ""
    assert TaskSpec(1, 1, label=NodeLabel.GPU).label == "gpu"
    assert TaskSpec(1, 1, label="fast").label == "fast"


def test_a_spec_cannot_change():
    with pytest.raises(AttributeError):
        TaskSpec(1, 1).memory = 2


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ({"ps": TaskSpec(1, 1)}, "ps: there are no parameter servers here.*Leave the ps tasks out.*--ps-policy exit0"),
        ({"boss": TaskSpec(1, 1)}, "unknown role 'boss': expected one of chief, worker, evaluator, tensorboard"),
        ({"chief": TaskSpec(1, 1, instances=2)}, "chief: instances: expected 1, got 2"),
        ({"chief": TaskSpec(1, 2, nb_proc_per_worker=2)}, "chief: nb_proc_per_worker: expected 1, got 2"),
        ({"worker": TaskSpec(1, 1), "evaluator": TaskSpec(1, 1, 2)}, "evaluator: instances: expected 1, got 2"),
        ({"worker": TaskSpec(1, 1), "tensorboard": TaskSpec(1, 1, 3)}, "tensorboard: instances: expected 1, got 3"),
        ({"chief": TaskSpec(1, 1, min_instances=1)}, "chief: min_instances: only workers may be fewer"),
        ({"evaluator": TaskSpec(1, 1)}, "no task trains"),
        ({}, "no task trains"),
        ({"worker": {"memory": 1}}, "worker: expected a TaskSpec, got"),
        ([TaskSpec(1, 1)], "a mapping from roles"),
    ],
)
def test_a_job_that_cannot_be_is_refused(specs, message):
    with pytest.raises(ConfigError, match=message):
        check_task_specs(specs)


def test_a_ps_entry_is_left_out_on_request():
    specs = {"ps": TaskSpec(1, 1), "worker": TaskSpec(1, 1)}
    assert list(check_task_specs(specs, "exit0")) == ["worker"]
    assert "ps" in specs
    with pytest.raises(ConfigError, match="ps policy: expected one of error, exit0"):
        check_task_specs(specs, "ignore")


def test_the_chief_precedes_the_workers_ranks():
    specs = {"worker": TaskSpec(1, 2, instances=2, nb_proc_per_worker=2), "chief": TaskSpec(1, 1)}
    assert [str(task) for task in trainers_of(specs)] == ["chief:0", "worker:0", "worker:1", "worker:2", "worker:3"]
    assert [str(task) for task in trainers_of({"worker": TaskSpec(1, 1, 2)})] == ["worker:0", "worker:1"]


def test_so_many_ranks_are_enough():
    worker = TaskSpec(1, 2, instances=4, nb_proc_per_worker=2, min_instances=1)
    assert least_trainers_of({"worker": worker}) == 2
    beside = {"chief": TaskSpec(1, 1), "evaluator": TaskSpec(1, 1), "tensorboard": TaskSpec(1, 1)}
    assert least_trainers_of({"worker": worker, **beside}) == 3
    assert least_trainers_of({"worker": TaskSpec(1, 1, 4), **beside}) is None
    assert least_trainers_of(beside) is None


def test_the_topologies_are_jobs():
    single = check_task_specs(single_server_topology("8 GiB", 3))
    assert [str(task) for task in (*trainers_of(single), *auxiliary_tasks_of(single))] == [
        "chief:0",
        "evaluator:0",
        "tensorboard:0",
    ]
    assert {(spec.memory, spec.vcores) for spec in single.values()} == {(8192, 3)}
    several = check_task_specs(allreduce_topology(3, "1 GiB", 2, nb_proc_per_worker=2, gpus=2, label="v100"))
    assert len(trainers_of(several)) == 7
    assert (several["chief"].gpus, several["chief"].label, several["chief"].processes) == (2, "v100", 1)
    assert (several["evaluator"].gpus, several["evaluator"].label) == (0, "")
    alone = check_task_specs(allreduce_topology(0, evaluator=False, tensorboard=False))
    assert list(alone) == ["chief"]
    with pytest.raises(ConfigError, match="nb_workers: expected 0 or more, got -1"):
        allreduce_topology(-1)
