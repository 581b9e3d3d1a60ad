"""The training benchmark without training: models, options, jobs, commands, results."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfcollective._base.codec import decode, encode
from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective_bench import experiment
from tfcollective_bench.interleave import Failure
from tfcollective_bench.model import RunnerState
from tfcollective_bench.training import job as job_module
from tfcollective_bench.training import run
from tfcollective_bench.training.counters import Meter, parse_net_dev
from tfcollective_bench.training.environments import Environment, missing
from tfcollective_bench.training.job import JobError, run_job
from tfcollective_bench.training.job_plan import Case, JobPlan, PlannedProcess, Site, plan_job, ports_needed
from tfcollective_bench.training.models import MODELS
from tfcollective_bench.training.options import TrainingOptions
from tfcollective_bench.training.runners import RUNNERS, chosen, hosts_needed, jobs, slots
from tfcollective_bench.training.task import Epoch, ProcessResult, TrainingTask, mark_line, parse_mark

PYTHONS = {"keras3": "/k3/python", "keras2": "/k2/python", "horovod": "/hvd/python"}
TESTBED = Site(
    results="/r",
    ports=(1001, 1002, 1003, 1004),
    hosts=("10.0.0.1", "10.0.0.2", "10.0.0.3"),
    namespaces=("n1", "n2", "n3"),
    interfaces=("c1", "c2", "c3"),
    gateway="10.0.0.254",
)


def case(strategy, **changes):
    return dataclasses.replace(Case(strategy, "/python", "mlp1024", 2, 10, 2, cores=((0,), (1,))), **changes)


# ---- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "hidden"), [("mlp1024", 1024), ("mlp2048", 2048)])
def test_an_mlp_has_the_weights_of_its_layers(name, hidden):
    expected = 785 * hidden + (hidden + 1) * hidden + (hidden + 1) * 10
    assert MODELS[name].weights == expected
    assert MODELS[name].dense_bytes == 4 * expected
    assert MODELS[name].sparse_bytes == 0


def test_the_embedding_is_sparse_and_mostly_untouched():
    model = MODELS["embedding"]
    assert model.sparse_bytes == 64 * 20 * (32 * 4 + 8)
    assert model.weights * 4 > 100 * model.sparse_bytes
    assert model.dense_bytes < model.sparse_bytes


def test_the_convolutional_network_computes_more_than_it_sends():
    assert MODELS["convnet"].dense_bytes < MODELS["mlp1024"].dense_bytes / 10


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"processes": ()}, "-np"),
        ({"processes": (2, 0)}, "^-np: "),
        ({"models": ("resnet",)}, "'resnet' is not one of mlp1024"),
        ({"models": ()}, "--models"),
        ({"links": ("wifi",)}, "'wifi' is neither loopback nor a rate"),
        ({"links": ("none",)}, "'none' is neither loopback nor a rate"),
        ({"links": ()}, "--link"),
        ({"views": ("threads",)}, "--view"),
        ({"rounds": 0}, "--rounds: expected a number above 0, got 0"),
        ({"steps": 3}, "--steps: expected 4 or more, one for each epoch, got 3"),
        ({"servers": -1}, "--servers: expected 0 or more, got -1"),
        ({"deadline_s": float("nan")}, "--deadline: expected a number above 0, got nan"),
        ({"keras2_python": "/nowhere/python"}, "--keras2-python: /nowhere/python does not exist"),
    ],
)
def test_options_that_cannot_be(wrong, message):
    with pytest.raises(ConfigError, match=message):
        TrainingOptions(**wrong)


def test_steps_are_parted_into_epochs():
    assert TrainingOptions(steps=42, epochs=4).steps_per_epoch("mlp1024") == 10
    assert TrainingOptions(epochs=4).steps_per_epoch("convnet") == MODELS["convnet"].steps // 4


def test_an_unknown_runner():
    with pytest.raises(ConfigError, match="unknown runner 'gloo': expected one of ours, "):
        chosen(("ours", "gloo"))


# ---- jobs ------------------------------------------------------------------------------------------------------------


def planned(*runners, cores=(0, 1), **options):
    return list(jobs(chosen(runners), PYTHONS, TrainingOptions(**{"models": ("mlp1024",), **options}), cores))


def test_cores_are_shared_equally_or_not():
    assert slots(2, (0, 1)) == ((0,), (1,))
    assert slots(2, (4, 5, 6, 7, 8)) == ((4, 5), (6, 7))
    assert slots(3, (0, 1)) == ()


def test_everyone_gets_the_same_threads_cores_and_steps():
    by_everyone = planned(steps=400)
    assert {one.case.threads for one in by_everyone} == {1}
    assert {one.case.cores for one in by_everyone} == {((0,), (1,))}
    assert {one.case.steps for one in by_everyone if one.view == "processes"} == {100}
    assert {one.case.size for one in by_everyone if one.runner not in ("single", "single-keras2", "ps")} == {2}
    assert {one.case.size for one in planned("single")} == {1}


def test_servers_are_swept_in_both_views():
    found = {(j.view, j.case.servers, j.case.size, j.case.steps_per_execution) for j in planned("ps", steps=400)}
    assert found == {
        *(("processes", servers, 2, steps) for servers in (1, 2) for steps in (1, 10)),
        *(("cores", 1, 1, steps) for steps in (1, 10)),
    }


def test_fewer_workers_train_as_many_samples():
    for one in planned("ps", processes=(4,), steps=400, views=("cores",)):
        assert one.case.size + one.case.servers == 4
        assert one.case.own_slots
        assert 400 <= one.case.size * one.case.steps < 400 + one.case.size * one.case.steps_per_execution


def test_steps_at_a_time_must_divide_epochs():
    assert {one.case.steps_per_execution for one in planned("ps", steps=28)} == {1}


def test_names_are_unique():
    names = [one.name for one in planned(processes=(2, 4), models=tuple(MODELS), links=("loopback", "1gbit"))]
    assert len(set(names)) == len(names)


def test_a_lab_has_room_for_the_servers():
    assert hosts_needed(planned("ours", "ps", steps=400, links=("1gbit",))) == 4
    assert hosts_needed(planned("ours", "ps", steps=400, links=("1gbit",), views=("cores",))) == 2


# ---- commands --------------------------------------------------------------------------------------------------------


def task_of(process):
    return TrainingTask.from_text(process.argv[-1])


def test_ours_is_one_command_of_our_launcher():
    (process,) = plan_job(case("ours"), Site(results="/r")).processes
    assert process.argv[:7] == ("/python", "-m", "tfcollective", "run", "-np", "2", "--no-prefix")
    assert task_of(process).rank is None
    (other,) = plan_job(case("ours-bf16"), Site(results="/r")).processes
    assert task_of(other) == dataclasses.replace(task_of(process), strategy="ours-bf16")
    assert task_of(process).cores == ((0,), (1,))


def test_ours_on_hosts_binds_to_the_bridge():
    (process,) = plan_job(case("ours"), TESTBED).processes
    assert process.argv[3:5] == ("10.0.0.254", "n1=10.0.0.1,n2=10.0.0.2")
    assert "TFCOLLECTIVE_DATA_PARALLEL" not in process.env


def test_an_unmodified_script_has_the_option():
    (process,) = plan_job(case("ours-unmodified"), Site(results="/r")).processes
    assert process.argv[3:5] == ("run", "--data-parallel")
    (process,) = plan_job(case("ours-unmodified"), TESTBED).processes
    assert process.env["TFCOLLECTIVE_DATA_PARALLEL"] == "1"


def test_all_processes_have_the_threads_of_the_case():
    for strategy in ("ours", "horovod", "mwms", "ps", "unconnected"):
        plan = plan_job(case(strategy, servers=1 if strategy == "ps" else 0, threads=3), TESTBED)
        for process in plan.processes:
            assert process.env["TF_NUM_INTRAOP_THREADS"] == process.env["OMP_NUM_THREADS"] == "3"


def test_horovod_ranks_know_their_place():
    server, *ranks = plan_job(case("horovod"), Site(results="/r", ports=(7,))).processes
    assert server.announces
    assert not server.trains
    assert server.argv[-3:] == ("127.0.0.1", "7", "127.0.0.1:2")
    assert [rank.env["HOROVOD_LOCAL_RANK"] for rank in ranks] == ["0", "1"]
    server, *ranks = plan_job(case("horovod"), TESTBED).processes
    assert server.argv[-3:] == ("10.0.0.254", "1001", "10.0.0.1:1,10.0.0.2:1")
    assert [rank.env["HOROVOD_CROSS_RANK"] for rank in ranks] == ["0", "1"]
    assert [rank.argv[:4] for rank in ranks] == [("ip", "netns", "exec", "n1"), ("ip", "netns", "exec", "n2")]


def test_mwms_workers_share_a_cluster():
    processes = plan_job(case("mwms"), TESTBED).processes
    configs = [json.loads(process.env["TF_CONFIG"]) for process in processes]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": index} for index in (0, 1)]
    assert {json.dumps(config["cluster"]) for config in configs} == {'{"worker": ["10.0.0.1:1001", "10.0.0.2:1002"]}'}


def test_servers_stand_beside_or_replace_workers():
    beside = plan_job(case("ps", servers=1), TESTBED).processes
    assert [process.name for process in beside] == ["ps 0", "worker 0", "worker 1", "chief 0"]
    assert [task_of(process).cores for process in beside] == [(), ((0,),), ((1,),), ()]
    assert [process.trains for process in beside] == [False, False, False, True]
    assert beside[0].argv[3] == beside[3].argv[3] == "n3"
    instead = plan_job(case("ps", servers=1, size=1, own_slots=True), TESTBED).processes
    assert [process.name for process in instead] == ["ps 0", "worker 0", "chief 0"]
    assert [task_of(process).cores for process in instead] == [((1,),), ((0,),), ((1,),)]


def test_servers_have_a_thread_per_waiting_worker():
    for process in plan_job(case("ps", servers=1), TESTBED).processes:
        assert process.env["TF_NUM_INTEROP_THREADS"] == "3"


@pytest.mark.parametrize(("strategy", "ports"), [("ours", 0), ("single", 0), ("horovod", 1), ("mwms", 2), ("ps", 4)])
def test_ports_that_have_to_be_known_beforehand(strategy, ports):
    assert ports_needed(case(strategy, servers=1 if strategy == "ps" else 0)) == ports


def test_values_travel_as_text():
    one = case("ps", servers=2, own_slots=True)
    assert decode(encode(one), Case, "CASE") == one
    assert decode(encode(TESTBED), Site, "SITE") == TESTBED
    result = ProcessResult(1, 2.5, (Epoch(10, 0.5, 1.25),), {"python": "3"})
    assert decode(result.to_text(), ProcessResult, "the result") == result
    with pytest.raises(ValueError, match="resnet"):
        case("ours", model="resnet")


# ---- marks and counters ----------------------------------------------------------------------------------------------


def test_marks_are_lines_of_their_own():
    assert parse_mark(mark_line("begin")) == "begin"
    assert parse_mark("Epoch 1/2") is None


def test_bytes_are_those_that_the_hosts_have_sent():
    text = "Inter-|   Receive\n face |bytes packets\n    lo: 100 1 0 0 0 0 0 0 100 1\ntfcbed1c:7 1 0 0 0 0 0 0 9 1\n"
    assert parse_net_dev(text) == {"lo": 100, "tfcbed1c": 7}


def test_a_meter_adds_up_between_marks(monkeypatch):
    readings = iter(
        [({"a": 5, "b": 1}, 1.0), ({"a": 9, "b": 1}, 1.5), ({"a": 20, "b": 1}, 3.0), ({"a": 21, "b": 4}, 4.0)]
    )
    meter = Meter(("a", "b"))
    monkeypatch.setattr(meter, "_now", lambda: next(readings))
    for mark in ("end", "begin", "end", "begin", "end"):
        meter.mark(mark)
    assert meter.reading.sent_bytes == 4 + 4
    assert meter.reading.cpu_seconds == 1.5


# ---- running processes -----------------------------------------------------------------------------------------------

RESULT = ProcessResult(0, 2.0, (Epoch(64, 0.5, 1.0),), {}).to_text()
LEAVE_RESULT = "import pathlib, sys; pathlib.Path(sys.argv[1], '0.json').write_text(sys.argv[2]);"


def python(name, program, *arguments, **options):
    return PlannedProcess(name, (sys.executable, "-c", program, *arguments), {}, **options)


def job_of(monkeypatch, tmp_path, *processes):
    monkeypatch.setattr(job_module, "plan_job", lambda case, site: JobPlan(processes, 1))
    return run_job(case("single"), Site(results=str(tmp_path)))


def test_a_job_ends_its_servers_after_training(monkeypatch, tmp_path):
    pid = tmp_path / "pid"
    server = python(
        "server",
        f"import os, time; open({str(pid)!r} + '.new', 'w').write(str(os.getpid())); "
        f"os.rename({str(pid)!r} + '.new', {str(pid)!r}); time.sleep(60)",
        trains=False,
    )
    trainer = python(
        "trainer",
        f"import os, time\nwhile not os.path.exists({str(pid)!r}): time.sleep(0.01)\n{LEAVE_RESULT}",
        str(tmp_path),
        RESULT,
    )
    results, _ = job_of(monkeypatch, tmp_path, server, trainer)
    assert [result.rank for result in results] == [0]
    assert not Path(f"/proc/{pid.read_text()}").exists()


def test_a_crashed_process_is_named_and_quoted(monkeypatch, tmp_path):
    crash = python("worker 1", "import sys; print('so far so good'); sys.exit('the end')")
    waiter = python("worker 0", "import time; time.sleep(60)")
    with pytest.raises(JobError, match="worker 1 ended with code 1: the end"):
        job_of(monkeypatch, tmp_path, waiter, crash)


def test_a_signal_has_its_name(monkeypatch, tmp_path):
    with pytest.raises(JobError, match="worker 0 was ended by SIGSEGV"):
        job_of(monkeypatch, tmp_path, python("worker 0", "import os; os.kill(os.getpid(), 11)"))


def test_a_server_that_ends_early_is_a_failure(monkeypatch, tmp_path):
    server = python("ps 0", "print('bye')", trains=False)
    with pytest.raises(JobError, match="ps 0 ended with code 0: bye"):
        job_of(monkeypatch, tmp_path, server, python("chief 0", "import time; time.sleep(60)"))


def test_a_crash_after_the_result_does_not_count(monkeypatch, tmp_path):
    results, _ = job_of(monkeypatch, tmp_path, python("t", LEAVE_RESULT + "sys.exit(3)", str(tmp_path), RESULT))
    assert len(results) == 1


def test_no_result_is_a_failure(monkeypatch, tmp_path):
    with pytest.raises(JobError, match="0 of 1 processes left a result"):
        job_of(monkeypatch, tmp_path, python("t", "pass"))


def test_a_process_starts_after_those_that_announce_themselves(monkeypatch, tmp_path):
    there = tmp_path / "there"
    program = f"import time; time.sleep(0.3); open({str(there)!r}, 'w'); print('{mark_line('ready')}', flush=True);"
    program += " time.sleep(60)"
    first = python("rendezvous server", program, trains=False, announces=True)
    second = python(
        "worker 0", f"import os; assert os.path.exists({str(there)!r}); {LEAVE_RESULT}", str(tmp_path), RESULT
    )
    results, _ = job_of(monkeypatch, tmp_path, first, second)
    assert len(results) == 1


def test_an_ended_job_leaves_nothing_behind(tmp_path):
    """As the benchmark's Ctrl-C ends it. Without TensorFlow: the interpreter of the case only sleeps."""
    sleeper = tmp_path / "python"
    sleeper.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    sleeper.chmod(0o755)
    results = tmp_path / "results"
    results.mkdir()
    texts = (encode(case("single", python=str(sleeper), size=1)).decode(), encode(Site(results=str(results))).decode())
    with subprocess.Popen([sys.executable, "-m", "tfcollective_bench.training.job", *texts]) as process:
        deadline = time.monotonic() + 20
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert list(results.iterdir())
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
    assert not list(results.iterdir())


# ---- what is there, and what became of it ----------------------------------------------------------------------------


def test_environments_are_distinguished_by_their_tensorflow():
    ours = dict.fromkeys(("aiohttp", "urllib3", "click", "rich", "psutil"), "1")
    assert Environment("p", {"tensorflow-cpu": "2.21.0", **ours}).serves("keras3")
    assert not Environment("p", {"tensorflow-cpu": "2.15.1", **ours}).serves("keras3")
    assert Environment("p", {"tensorflow": "2.15.1", **ours}).serves("keras2")
    assert not Environment("p", {"tensorflow": "2.15.1"}).serves("keras2")  # ours could not run there
    assert Environment("p", {"tensorflow": "2.15.1", "horovod": "0.28.1"}).serves("horovod")
    assert not Environment("p", {}).serves("keras3")


def test_what_is_missing_says_how_to_get_it():
    assert "tools/baselines.sh horovod" in missing(RUNNERS["horovod"], {})
    assert missing(RUNNERS["horovod"], {"horovod": Environment("p", {"tensorflow": "2.15", "horovod": "0.28"})}) == ""
    assert "p is not an environment with TensorFlow 2.15" in missing(RUNNERS["mwms"], {"keras2": Environment("p", {})})


def test_samples_of_a_job():
    (one,) = planned("ours", steps=8, epochs=2)
    epochs = [{"samples": 256, "seconds": 2.0, "loss": 1.5}, {"samples": 256, "seconds": 1.0, "loss": 1.0}]
    slower = [{**epoch, "seconds": 4.0} for epoch in epochs]
    content = {
        "results": [{"first_loss": 2.3, "epochs": epochs}, {"first_loss": 2.3, "epochs": slower}],
        "reading": {"sent_bytes": 2048, "cpu_seconds": 5.12},
    }
    found = {sample.metric: sample for sample in run.samples_of(one, 1, content)}
    assert found["throughput"].values == (128.0, 128.0)
    assert found["loss"].values == (2.3, 1.5, 1.0)
    assert found["trained"].values == (0.0, 1024.0, 1536.0)
    assert found["wire"].values == (2.0,)
    assert found["cpu"].values == (5.12 / 1024,)
    assert found["throughput"].row == {"model": "mlp1024", "ranks": 2, "link": "loopback", "view": "processes"}


def test_unconnected_processes_count_one_by_one():
    (one,) = planned("unconnected", steps=8, epochs=1)
    epochs = [[{"samples": 512, "seconds": seconds, "loss": 1.0}] for seconds in (1.0, 2.0)]
    results = [{"first_loss": 2.3, "epochs": epoch} for epoch in epochs]
    content = {"results": results, "reading": {"sent_bytes": 0, "cpu_seconds": 0.0}}
    found = {sample.metric: sample for sample in run.samples_of(one, 0, content)}
    assert found["throughput"].values == (768.0,)
    assert found["trained"].values == (0.0, 1024.0)


@pytest.fixture
def nothing_runs(monkeypatch):
    environment = {"tensorflow": "2.21.0", **dict.fromkeys(("aiohttp", "urllib3", "click", "rich", "psutil"), "1")}
    monkeypatch.setattr(run, "find_environments", lambda options: {"keras3": Environment("p", environment)})


@pytest.fixture
def not_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


class Watch:
    def __init__(self, turns):
        self.turns = turns

    def __enter__(self):
        return lambda event: None

    def __exit__(self, *unused):
        pass


def test_without_root_the_loopback_part_still_runs(nothing_runs, not_root, monkeypatch):
    def crash(variants, rounds, until=None):
        return (Failure(variant.name, 0, "crashed", "boom") for variant in variants)

    monkeypatch.setattr(experiment, "interleave", crash)
    options = TrainingOptions(models=("mlp1024",), runners=("ours", "horovod"), links=("loopback", "1gbit"))
    report = run.run_training(options, ["x"], Watch)
    statuses = {status.runner: status for status in report.statuses}
    assert statuses["ours"].state is RunnerState.FAILED
    assert statuses["ours"].detail.endswith("crashed in round 1: boom")
    assert statuses["horovod"].state is RunnerState.MISSING
    assert statuses["link 1gbit"].state is RunnerState.MISSING
    assert "root" in statuses["link 1gbit"].detail


def test_without_root_and_loopback_nothing_is_done(nothing_runs, not_root):
    options = TrainingOptions(models=("mlp1024",), runners=("ours",), links=("1gbit",))
    with pytest.raises(UnsupportedError, match="root"):
        run.run_training(options, ["x"], Watch)
