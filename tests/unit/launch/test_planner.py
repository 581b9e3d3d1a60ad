import os
from pathlib import Path

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._base.settings import Settings
from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import Placement
from tfcollective._launch.plan.hosts import parse_hosts, share_out
from tfcollective._launch.plan.placement import Slot
from tfcollective._launch.plan.planner import describe, plan_hosts, plan_local, plan_newcomer
from tfcollective._launch.plan.rank_variables import newcomer_variables
from tfcollective._launch.plan.spec import JobSpec


def plan(num_proc=2, cores=8, environ=None, **fields):
    return plan_local(JobSpec(("python", "a b.py"), num_proc, **fields), cores=cores, environ=environ or {})


def test_exactly_n_ranks_in_order():
    workers = plan(3).workers
    assert [(str(w.task), w.rank, w.local_rank) for w in workers] == [
        ("worker:0", 0, 0),
        ("worker:1", 1, 1),
        ("worker:2", 2, 2),
    ]
    assert all(worker.argv == ("python", "a b.py") for worker in workers)


def test_what_a_rank_finds_in_its_environment():
    worker = plan(op_timeout=2.5, start_timeout=7.0, stall_warning=0.0, transport="tcp").workers[1]
    settings = Settings.load(worker.env)
    assert (settings.task, settings.size) == (TaskKey("worker", 1), 2)
    assert (settings.op_timeout, settings.start_timeout, settings.stall_warning) == (2.5, 7.0, 0.0)
    assert settings.transport == "tcp"


@pytest.mark.parametrize(("cores", "ranks", "share"), [(8, 2, "4"), (2, 2, "1"), (5, 2, "2"), (1, 4, "1"), (4, 1, "4")])
def test_cores_are_shared_out(cores, ranks, share):
    for worker in plan(ranks, cores).workers:
        names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        assert [worker.env[name] for name in names] == [share] * 3


def test_what_the_user_has_set_stays():
    env = plan(environ={"OMP_NUM_THREADS": "7"}, env={"TF_NUM_INTRAOP_THREADS": "9", "A": "b"}).workers[0].env
    assert "OMP_NUM_THREADS" not in env
    assert (env["TF_NUM_INTRAOP_THREADS"], env["TF_NUM_INTEROP_THREADS"], env["A"]) == ("9", "4", "b")


RANK_WORDS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def test_ranks_find_their_number_in_the_environment():
    assert [[worker.env[word] for word in RANK_WORDS] for worker in plan().workers] == [
        ["0", "2", "0", "2"],
        ["1", "2", "1", "2"],
    ]
    inherited = plan(environ={"RANK": "7"}, env={"WORLD_SIZE": "9"}).workers[1].env
    assert [inherited[word] for word in RANK_WORDS] == ["1", "9", "1", "2"]
    spec = JobSpec(("x",), 3, hosts=parse_hosts("a:1,b:2"))
    found = plan_hosts(spec, share_out(spec.hosts, 3), {"LOCAL_RANK": "5"}).workers
    assert [[worker.env[word] for word in RANK_WORDS] for worker in found] == [
        ["0", "3", "0", "1"],
        ["1", "3", "0", "2"],
        ["2", "3", "1", "2"],
    ]


def test_what_a_script_written_for_horovod_finds():
    assert not [name for name in plan().workers[0].env if name.startswith("HOROVOD") or name == "PYTHONPATH"]
    env = plan(horovod_compat=True, environ={"PYTHONPATH": "/a"}, env={"WORLD_SIZE": "9"}).workers[1].env
    first, _, rest = env["PYTHONPATH"].partition(os.pathsep)
    assert rest == "/a"
    assert (Path(first) / "horovod" / "__init__.py").exists()
    words = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"]
    assert [env[f"HOROVOD_{word}"] for word in words] == ["1", "2", "1", "2", "0", "1"]
    assert [env[word] for word in RANK_WORDS] == ["1", "9", "1", "2"]
    assert plan(horovod_compat=True).workers[0].env["PYTHONPATH"] == first
    assert (env["HOROVOD_HOSTNAME"], env.get("HOROVOD_ELASTIC")) == ("localhost", None)
    spec = JobSpec(("x",), 3, hosts=parse_hosts("a:1,b:2"), horovod_compat=True, min_proc=2)
    found = plan_hosts(spec, share_out(spec.hosts, 3), {}).workers
    assert [worker.env["HOROVOD_HOSTNAME"] for worker in found] == ["a", "b", "b"]
    assert {worker.env["HOROVOD_ELASTIC"] for worker in found} == {"1"}


def test_what_an_unmodified_script_finds():
    names = ("TFCOLLECTIVE_DATA_PARALLEL", "TFCOLLECTIVE_BATCH_NORM")
    assert not set(names) & set(plan().workers[0].env)
    env = plan(data_parallel=True, batch_norm="local", environ={"PYTHONPATH": "/a"}).workers[1].env
    assert [env[name] for name in names] == ["1", "local"]
    first, _, rest = env["PYTHONPATH"].partition(os.pathsep)
    assert rest == "/a"
    assert (Path(first) / "sitecustomize.py").exists()
    both = plan(data_parallel=True, horovod_compat=True).workers[0].env["PYTHONPATH"]
    assert both.startswith(first + os.pathsep)
    assert len(both.split(os.pathsep)) == 2


@pytest.mark.parametrize(
    ("given", "seed"), [({}, "0"), ({"PYTHONHASHSEED": "random"}, "0"), ({"PYTHONHASHSEED": "7"}, "7")]
)
def test_sets_have_one_order_in_unmodified_scripts(given, seed):
    ranks = plan(data_parallel=True, environ=given).workers
    assert {rank.env["PYTHONHASHSEED"] for rank in ranks} == {seed}
    assert "PYTHONHASHSEED" not in plan().workers[0].env


PLACE = Placement(4, 5, 1, 2, 2, 3)


def test_what_a_process_finds_that_joins_later():
    own = {"RANK": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert newcomer_variables(PLACE, "h2", {"WORLD_SIZE": "9"}, compat=False) == own
    assert newcomer_variables(PLACE, "h2", {"HOROVOD_RANK": "9"}, compat=True) == {
        **own,
        "WORLD_SIZE": "5",
        "HOROVOD_SIZE": "5",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "2",
        "HOROVOD_CROSS_SIZE": "3",
        "HOROVOD_HOSTNAME": "h2",
    }


def test_a_later_process_resembles_its_slots_first():
    spec = JobSpec(("python", "x.py"), 2, min_proc=1, hosts=parse_hosts("h1:2"))
    began = plan_hosts(spec, share_out(spec.hosts, 2), {})
    began.workers[1].env["OF_THE_SLOT"] = "yes"
    again = plan_newcomer(spec, began, TaskKey("worker", 2), 2, Slot("h1", 1), PLACE)
    assert (again.task.index, again.rank, again.host, again.local_rank) == (2, 2, "h1", 1)
    assert again.argv == began.workers[0].argv
    assert (again.env["OF_THE_SLOT"], again.env["TFCOLLECTIVE_TASK"]) == ("yes", "worker:2")
    other = plan_newcomer(spec, began, TaskKey("worker", 3), 3, Slot("h2", 1), PLACE)
    assert (other.host, other.local_rank, other.env["TFCOLLECTIVE_NEWCOMER"]) == ("h2", 1, "1")
    assert "OF_THE_SLOT" not in other.env


def test_the_description_shows_commands_but_no_secrets():
    text = describe(plan(env={"API_TOKEN": "sesame", "my_password": "sesame", "DATA": "a b"}))
    assert "rank 1 (worker:1, local rank 1)" in text
    assert "command: python 'a b.py'" in text
    assert "DATA='a b'" in text
    assert "sesame" not in text


@pytest.mark.parametrize(
    "fields",
    [
        {"num_proc": 0},
        {"num_proc": -1},
        {"command": ()},
        {"start_timeout": 0},
        {"op_timeout": -1},
        {"transport": "x"},
        {"stall_warning": -1},
    ],
)
def test_a_job_that_makes_no_sense_is_refused(fields):
    with pytest.raises(ConfigError):
        JobSpec(**{"command": ("x",), "num_proc": 1, **fields})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"num_proc": "2"}, "expected 1 or more, got '2'"),
        ({"num_proc": True}, "expected 1 or more, got True"),
        ({"op_timeout": float("nan")}, "op_timeout .*: expected a number of seconds, above 0, got nan"),
        (
            {"start_timeout": float("inf")},
            r"start_timeout .*: expected a number of seconds, at most 1000000 \(11.6 days\), got inf",
        ),
        ({"host_timeout": 1.1e6}, "host_timeout .*: expected a number of seconds, at most"),
        ({"start_timeout": None}, "start_timeout .*: expected"),
        ({"stall_warning": -1}, "stall_warning .*: expected a number of seconds, 0 or more, got -1"),
        ({"env": {"A": 1}}, "env .*: A: expected a string without NUL characters"),
        ({"env": {"A": "\0"}}, "env .*: A: expected a string"),
        ({"env": {"A=B": "x"}}, "'A=B' cannot be the name of a variable"),
        ({"env": {"": "x"}}, "'' cannot be the name"),
    ],
)
def test_options_useless_to_ranks_are_refused(fields, text):
    with pytest.raises(ConfigError, match=text):
        JobSpec(("true",), **{"num_proc": 2, **fields})
