"""Jobs in an application that goes on afterwards, as a notebook's does."""

import io
import os
import re
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
import spark_jobs
from launching import environment_of, until
from spark_testbed import ancestors
from tfcollective_launchers.spark import context as of_spark
from tfcollective_launchers.spark import run
from tfcollective_launchers.spark.options import SparkOptions

import tfcollective
from tfcollective._base.errors import ConfigError, LaunchError, RendezvousError, UnsupportedError, WorkerFailedError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
START_S = 300.0


@pytest.fixture(scope="module")
def context(make_context):
    return make_context(**{"spark.cores.max": "2"})


@pytest.fixture
def disturb(tmp_path):
    """Calls a function with the process ids of two ranks, on a thread, once both run; its error is the test's."""
    errors, threads = [], []

    def pids():
        return [int(one.name.rpartition("-")[2]) for one in tmp_path.glob("rank-*")]

    def start(act):
        def watch():
            try:
                until(lambda: len(pids()) == 2, START_S)
                act(sorted(pids()))
            except BaseException as error:
                errors.append(error)
                (tmp_path / "finish").touch()

        threads.append(threading.Thread(target=watch, daemon=True))
        threads[0].start()

    yield start
    for thread in threads:
        thread.join(START_S)
    assert not errors, errors


def gone(pids):
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)


def test_a_function_runs_on_every_rank(context):
    output = io.StringIO()
    first, second = run(spark_jobs.report, (1,), {"two": 2}, num_proc=2, start_timeout=START_S, stdout=output)
    assert [one["rank"] for one in (first, second)] == [0, 1]
    for one in (first, second):
        assert (one["size"], one["sum"], one["given"]) == (2, 3.0, ((1,), {"two": 2}))
        assert one["of_spark"] == []
        assert "pyspark.zip" not in one["path"]
        assert one["threads"] == "1"
        assert one["gpus"] is None
    assert sorted(re.findall(r"rank \d says hello", output.getvalue())) == ["rank 0 says hello", "rank 1 says hello"]
    assert first["key"] == second["key"]


def test_neither_log_nor_environment_holds_the_key(context, tmp_path, disturb):
    found = []

    def look(pids):
        ranks = [psutil.Process(pid) for pid in pids]
        with open(environment_of(ranks[0])["TFCOLLECTIVE_KEY_FILE"]) as file:
            key = file.read()
        found.append(key)
        assert not [one.pid for one in psutil.process_iter() if key in repr(environment_of(one))]
        (tmp_path / "finish").touch()

    disturb(look)
    assert run(spark_jobs.go_on, (str(tmp_path),), num_proc=2, start_timeout=START_S) == [2, 2]
    again = run(spark_jobs.report, num_proc=1, start_timeout=START_S)[0]["key"]
    assert again != found[0]
    (log,) = context.event_log.glob("app-*")
    text = log.read_text(errors="replace")
    assert "tfcollective: task-0, task-1" in text  # it is the log of these jobs
    assert found[0] not in text
    assert again not in text
    assert not [pair for pair in context.getConf().getAll() if found[0] in pair[1]]


def test_the_exception_of_a_rank_is_raised(context):
    with pytest.raises(WorkerFailedError, match="this rank has had enough") as raised:
        run(spark_jobs.fail_on_one, num_proc=2, start_timeout=START_S)
    assert raised.value.first["rank"] == 1


def test_a_command_runs_its_script(context, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import tfcollective\ntfcollective.init()\nprint('trained', tfcollective.rank())\n")
    output = io.StringIO()
    assert run(["python", str(script)], num_proc=2, start_timeout=START_S, stdout=output) == [None, None]
    assert sorted(re.findall(r"trained \d", output.getvalue())) == ["trained 0", "trained 1"]


def test_an_evaluator_runs_in_rank_0s_task(context, tmp_path):
    specs = {
        "worker": tfcollective.TaskSpec("128 MiB", 1, instances=2),
        "evaluator": tfcollective.TaskSpec("128 MiB", 1),
    }
    assert run(spark_jobs.name_agent, (str(tmp_path),), task_specs=specs, start_timeout=START_S) == [None, None]
    agents = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(agents) == ["evaluator:0", "worker:0", "worker:1"]
    assert agents["evaluator:0"] == agents["worker:0"] != agents["worker:1"]


def test_it_is_a_launcher_like_others(context):
    options = {"launcher": "spark", "start_timeout": START_S, "platform": {"spark": context}}
    assert [one["rank"] for one in tfcollective.run(spark_jobs.report, np=2, **options)] == [0, 1]


@pytest.mark.kill
def test_a_lost_executor_ends_a_job_completely(context, tmp_path, disturb):
    left = []

    def kill(pids):
        for pid in pids:
            left.extend(one.pid for one in ancestors(pid)[:2])
        ancestors(pids[0])[-1].kill()

    disturb(kill)
    with pytest.raises(LaunchError, match=r"task-\d on \S+: the agent was lost with its executor: ExecutorLost"):
        run(spark_jobs.go_on, (str(tmp_path),), num_proc=2, start_timeout=START_S)
    until(lambda: gone(left), 30)


@pytest.mark.kill
def test_a_lost_python_worker_restarts_a_job(context, tmp_path, disturb, capfd):
    def kill(pids):
        worker = ancestors(pids[0])[2]
        assert "pyspark" in " ".join(worker.cmdline())
        for one in tmp_path.glob("rank-*"):
            one.unlink()
        worker.kill()
        until(lambda: len(list(tmp_path.glob("rank-*"))) == 2, START_S)
        (tmp_path / "finish").touch()

    disturb(kill)
    found = run(spark_jobs.go_on, (str(tmp_path),), num_proc=2, start_timeout=START_S, max_restarts=1)
    assert found == [2, 2]
    assert "all ranks are started again" in capfd.readouterr().err


def test_ctrl_c_ends_the_job_only(context, tmp_path, disturb):
    handler = signal.getsignal(signal.SIGINT)
    slow = context.parallelize([0], 1)
    disturb(lambda pids: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        run(spark_jobs.go_on, (str(tmp_path),), num_proc=2, start_timeout=START_S)
    assert signal.getsignal(signal.SIGINT) is handler
    assert slow.count() == 1


def test_too_few_slots_are_awaited_then_named(context):
    began = time.monotonic()
    with pytest.raises(RendezvousError, match=r"have \d task slots, and the job needs 9"):
        run(spark_jobs.report, num_proc=9, start_timeout=3)
    assert time.monotonic() - began >= 3
    assert run(spark_jobs.report, num_proc=1, start_timeout=START_S)[0]["size"] == 1


def test_dynamic_allocation_is_refused_before_anything_starts(context):
    class Dynamic:
        master = "spark://elsewhere:7077"

        @staticmethod
        def getConf():
            return {"spark.dynamicAllocation.enabled": "true"}

    for refused in (
        lambda: of_spark.check_context(Dynamic),
        lambda: of_spark.make_context(SparkOptions(conf={"spark.dynamicAllocation.enabled": "true"}), 1),
    ):
        with pytest.raises(ConfigError, match="SPARK-24942"):
            refused()


def test_spark_connect_and_non_sessions_are_refused(context):
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    with pytest.raises(UnsupportedError, match="no SparkContext"):
        run(spark_jobs.report, num_proc=1, spark=connect())
    with pytest.raises(ConfigError, match="expected a SparkSession"):
        run(spark_jobs.report, num_proc=1, spark="spark://host:7077")
    with pytest.raises(ConfigError, match="there can be one only"):
        run(spark_jobs.report, num_proc=1, platform={"master": "spark://elsewhere:7077"})
    with pytest.raises(UnsupportedError, match="not processes of MPI"):
        run(spark_jobs.report, num_proc=1, use_mpi=True)
    assert of_spark.active_context(SparkOptions()) is context


def test_an_executors_wrong_python_is_reported(context):
    python = context.pythonExec
    context.pythonExec = "/usr/bin/env"
    try:
        with pytest.raises(LaunchError, match=r"task-0: the agent .*(was ended by Spark|was lost)"):
            run(spark_jobs.report, num_proc=1, start_timeout=START_S)
    finally:
        context.pythonExec = python


def test_the_master_is_known_to_answer_before(cluster):
    check = (sys.executable, "-m", "tfcollective", "check", "--launcher", "spark", "--master")
    done = subprocess.run([*check, cluster.url], capture_output=True, text=True, timeout=START_S)
    assert done.returncode == 0, done.stdout
    assert "master: " in done.stdout and "takes connections" in done.stdout
    done = subprocess.run([*check, "spark://127.0.0.1:1"], capture_output=True, text=True, timeout=START_S)
    assert done.returncode == 1
    assert "127.0.0.1:1: Connection refused" in done.stdout
