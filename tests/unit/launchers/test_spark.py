"""What needs no Spark: reasons, variables, options, the plan."""

import socket
import sys
from types import SimpleNamespace

import pytest
from tfcollective_launchers.spark import api as of_api
from tfcollective_launchers.spark import context as of_spark
from tfcollective_launchers.spark.launcher import SparkLauncher, assigned, cores_of_task, on_tasks
from tfcollective_launchers.spark.options import SparkOptions
from tfcollective_launchers.spark.reasons import lost_partition, reason_of
from tfcollective_launchers.spark.task import agent_environment

from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective._launch.launcher import JobOutcome
from tfcollective._launch.nodes.provider import NodeFacts
from tfcollective._launch.plan.hosts import Host
from tfcollective._launch.plan.spec import JobSpec

ABORTED = (
    "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed barrier "
    "ResultStage. Most recent failure reason: Stage failed because barrier task ResultTask(4, 1) finished "
    "unsuccessfully.\n"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            ABORTED + "ExecutorLostFailure (executor 1 exited) Reason: exit code 137",
            ("was lost with its executor: ExecutorLostFailure (executor 1 exited) Reason: exit code 137"),
        ),
        (
            ABORTED + "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n\tat x.y(z:1)",
            "was lost with its task: Python worker exited unexpectedly (killed, or out of memory)",
        ),
        (
            ABORTED + 'org.apache.spark.api.python.PythonException: Traceback:\n  File "x", '
            "line 1\nRuntimeError: tfcollective: the agent was killed by SIGKILL (pid 7)\n    its last line\n\n\tat",
            "was killed by SIGKILL (pid 7)\n    its last line",
        ),
        (
            ABORTED + "ModuleNotFoundError: No module named 'tfcollective_launchers'\n",
            (
                "could not be started: the Python of the executors has no tfcollective_launchers: install "
                "tfcollective[spark] there, or name an interpreter that has it with PYSPARK_PYTHON (--remote-python)"
            ),
        ),
        (
            ABORTED
            + "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than "
            "that in driver: 3.11.",
            (
                "could not be started: Python in worker has different version: 3.12 than that in driver: 3.11. Set "
                "PYSPARK_PYTHON (--remote-python) to an interpreter of the driver's version that has tfcollective"
            ),
        ),
        (
            "BarrierJobSlotsNumberCheckFailed: [SPARK-24819]: Barrier execution mode does not allow\n\tat x",
            "could not be started: [SPARK-24819]: Barrier execution mode does not allow",
        ),
        (ABORTED + "java.lang.Error: broken\n\tat x.y(z:1)", "was ended by Spark: java.lang.Error: broken"),
        ("", "was ended by Spark: it does not say why"),
    ],
)
def test_sparks_reason_becomes_a_sentence(text, said):
    assert reason_of(text) == said


def test_the_task_that_failed_first_is_known():
    assert lost_partition(ABORTED) == 1
    assert lost_partition("cancelled") is None


def test_a_rank_gets_nothing_of_sparks_own_environment():
    environ = {
        "PYTHON_WORKER_FACTORY_SECRET": "secret",
        "PYTHONHASHSEED": "0",
        "SPARK_HOME": "/spark",
        "PYTHONPATH": "/spark/python/lib/pyspark.zip:/spark/python/lib/py4j-0.10.9-src.zip::/mine",
        "OMP_NUM_THREADS": "4",
        "HOME": "/root",
    }
    assert agent_environment(environ, 4, ()) == {
        "PYTHONPATH": "/mine",
        "OMP_NUM_THREADS": "4",
        "TF_NUM_INTRAOP_THREADS": "4",
        "TF_NUM_INTEROP_THREADS": "4",
        "HOME": "/root",
    }


@pytest.mark.parametrize(("visible", "found"), [(None, "1,3"), ("4,5,6,7", "5,7"), ("GPU-a,GPU-b", "GPU-b,3")])
def test_gpu_addresses_are_positions_among_visible_ones(visible, found):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert agent_environment(environ, 1, ["1", "3"])["CUDA_VISIBLE_DEVICES"] == found


def spec(**more):
    return JobSpec(command=("python",), num_proc=2, **more)


def test_each_task_is_a_node_with_one_rank():
    plan = SparkLauncher().plan(spec())
    assert [(one.rank, one.host, one.local_rank) for one in plan.workers] == [(0, "task-0", 0), (1, "task-1", 0)]


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"hosts": (Host("elsewhere", 2),)}, ConfigError),
        ({"emit_tf_config": True}, UnsupportedError),
        ({"min_proc": 1, "discovery": ("./hosts.sh",)}, UnsupportedError),
    ],
)
def test_what_spark_decides_is_refused(more, kind):
    with pytest.raises(kind, match="Spark"):
        SparkLauncher().plan(spec(**more))


def test_ranks_go_by_host_with_missing_last():
    elastic = on_tasks(JobSpec(command=("python",), num_proc=3, min_proc=1, max_proc=4))
    assert [host.name for host in elastic.hosts] == ["task-0", "task-1", "task-2", "task-3"]
    found = [NodeFacts(name="task-2", host="a"), NodeFacts(name="task-0", host="b")]
    assignment = assigned(found, elastic)
    assert [(one.rank, one.host) for one in assignment.plan.workers] == [(0, "task-2"), (1, "task-0"), (2, "task-1")]
    assert [(facts.name, len(workers)) for facts, workers in assignment.parts] == [("task-2", 1), ("task-0", 1)]
    assert assignment.hosts == elastic.hosts


def test_cores_that_are_no_number_are_named():
    with pytest.raises(ConfigError, match=r"spark.task.cpus: expected 1 or more, got 'many'"):
        cores_of_task(SparkOptions(conf={"spark.task.cpus": "many"}))


def test_without_pyspark_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyspark", None)
    with pytest.raises(ConfigError, match=r"pip install 'tfcollective\[spark\]'"):
        of_spark.import_pyspark()


# ---- tfcollective check --launcher spark -----------------------------------------------------------------------------


@pytest.fixture
def pyspark(monkeypatch, tmp_path):
    """A pyspark that has its version and properties alone, and a Java."""

    class SparkConf(dict):
        set = dict.__setitem__
        contains = dict.__contains__

        def setMaster(self, url):
            self["spark.master"] = url

    stub = SimpleNamespace(__version__="4.0.1", SparkConf=SparkConf)
    monkeypatch.setitem(sys.modules, "pyspark", stub)
    (tmp_path / "java").write_text("")
    (tmp_path / "java").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def look(**platform):
    return list(SparkLauncher().check(platform))


def test_a_master_that_takes_connections_is_well(pyspark):
    with socket.create_server(("127.0.0.1", 0)) as master:
        address = f"127.0.0.1:{master.getsockname()[1]}"
        findings = {one.name: one for one in look(master=f"spark://127.0.0.1:1,{address}")}
    assert all(one.ok for one in findings.values()), findings
    assert {name: one.detail for name, one in findings.items()} == {
        "pyspark": "4.0.1",
        "Java": str(pyspark / "java"),
        "application": f"runs on spark://127.0.0.1:1,{address}",
        "master": f"{address} takes connections",
    }
    assert all(one.ok for one in look(master="local[2]"))


@pytest.mark.parametrize(
    ("platform", "name", "said"),
    [
        ({"master": "spark://127.0.0.1:1"}, "master", "127.0.0.1:1: Connection refused"),
        ({"master": "spark://127.0.0.1"}, "master", "expected spark://HOST:PORT"),
        ({}, "application", "no Spark is there to run on"),
        (
            {"master": "local", "conf": {"spark.dynamicAllocation.enabled": "true"}},
            "application",
            "only without dynamic allocation",
        ),
    ],
)
def test_what_is_wrong_ends_it(pyspark, platform, name, said):
    last = look(**platform)[-1]
    assert (last.name, last.ok) == (name, False)
    assert said in last.detail


def test_without_java_or_pyspark_they_are_named(pyspark, monkeypatch):
    (pyspark / "java").unlink()
    assert "Spark needs Java" in look(master="local")[-1].detail
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert "pip install 'tfcollective[spark]'" in look(master="local")[-1].detail


def test_keywords_of_horovod_mix_with_job_options(monkeypatch):
    jobs = []

    def run_with(launcher, spec):
        jobs.append(spec)
        return JobOutcome((), initialised=True), []

    monkeypatch.setattr(of_api, "run_with", run_with)
    of_api.run(print, num_proc=2, nics="eth0", env={"A": "b"}, prefix_output_with_timestamp=True, verbose=2)
    spec = jobs.pop()
    assert (spec.num_proc, spec.network_interfaces, spec.env, spec.timestamps) == (2, ("eth0",), {"A": "b"}, True)
    assert (spec.log_level, spec.start_timeout, spec.platform["allocation_timeout"]) == ("info", 600.0, 600.0)
    of_api.run_elastic(print, num_proc=2, max_np=4, reset_limit=3, elastic_timeout=7, start_timeout=9)
    spec = jobs.pop()
    assert (spec.min_proc, spec.max_proc, spec.bounds.changes, spec.bounds.shortage) == (2, 4, 3, 7)
    assert (spec.start_timeout, spec.log_level) == (9, "warning")
    of_api.run_elastic(["python", "train.py"], num_proc=2, min_num_proc=1)
    spec = jobs.pop()
    assert (spec.min_proc, spec.command, spec.call) == (1, (sys.executable, "train.py"), None)
    with pytest.raises(ConfigError, match=r"unknown option 'reset_limits'; did you mean 'reset_limit'\?"):
        of_api.run_elastic(print, num_proc=2, reset_limits=3)
