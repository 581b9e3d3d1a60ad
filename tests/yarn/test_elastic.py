"""Elastic jobs on the real YARN: containers and ranks are lost, taken away and given again while the others train."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
import yarn_jobs
from elastic_jobs import train_on
from yarn_jobs import AGENT

import tfcollective
from tfcollective import TaskSpec

pytestmark = [pytest.mark.yarn, pytest.mark.kill, pytest.mark.timeout(900)]

TRIO = {
    "chief": TaskSpec("400 MiB", 1),
    "worker": TaskSpec("400 MiB", 1, instances=2, min_instances=1),
}


def run(on_yarn, specs=TRIO, **options):
    return tfcollective.run(train_on, task_specs=specs, **options, **on_yarn())


def test_a_killed_rank_returns_in_its_container(yarn, on_yarn, disturb, capfd):
    seen = {}

    def act(training):
        training.trains_with(3)
        seen.update(training.ranks(3))
        os.kill(seen["worker:1"]["pid"], signal.SIGKILL)
        step = training.trains_with(2)
        training.trains_with(3, after=step)
        seen.update(training.ranks(3))

    disturb(act)
    totals = run(on_yarn)
    assert len(totals) == 3
    assert len(set(totals)) == 1
    assert seen["worker:2"]["container"] == seen["worker:1"]["container"]
    assert "the others continued without it" in capfd.readouterr().err
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"


@pytest.mark.parametrize("name", ["chief-0", "worker-1"])
def test_a_container_that_is_killed_is_requested_again(yarn, on_yarn, disturb, capfd, name):
    lost = name.replace("-", ":")
    seen = {}

    def act(training):
        training.trains_with(3)
        seen.update(training.ranks(3))
        os.kill(training.agent(name), signal.SIGKILL)
        step = training.trains_with(2)
        training.trains_with(3, after=step)
        seen.update(training.ranks(3))

    disturb(act)
    totals = run(on_yarn)
    assert len(totals) == 3
    assert len(set(totals)) == 1
    containers = {one["container"] for one in seen.values()}
    assert len(containers) == 4
    err = capfd.readouterr().err
    how = rf"on {name}, slot 0\) was lost with its host: the container of {name} on \S+ was ended \(exit code 137"
    assert re.search(how, err), err
    rows = [line.split()[:3] for line in err.splitlines() if "http://" in line]
    states = {row[0]: row[2] for row in rows}
    assert states.pop(lost) == "lost"
    assert set(states.values()) == {"succeeded"}
    assert len(states) == 3
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"


def test_a_container_asked_to_end_is_replaced(yarn, on_yarn, disturb, capfd):
    """As YARN does before it takes one away."""

    def act(training):
        training.trains_with(3)
        container = training.ranks(3)["worker:0"]["container"]
        subprocess.run(["yarn", "container", "-signal", container, "GRACEFUL_SHUTDOWN"], check=True, timeout=300)
        step = training.trains_with(2)
        training.trains_with(3, after=step)

    disturb(act)
    totals = run(on_yarn)
    assert len(totals) >= 3
    err = capfd.readouterr().err
    assert "worker:0 left: its agent got SIGTERM" in err
    assert "continued without it" not in err
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"


def test_a_job_begins_with_fewer_containers(yarn, on_yarn, disturb, capfd):
    """The cluster has room for two of the three containers."""
    specs = {"chief": TaskSpec("2400 MiB", 1), "worker": TaskSpec("2400 MiB", 1, instances=2, min_instances=1)}
    disturb(lambda training: training.trains_with(2))
    options = {"start_timeout": 20.0, **on_yarn(allocation_timeout=30.0)}
    assert len(tfcollective.run(train_on, task_specs=specs, **options)) == 2
    err = capfd.readouterr().err
    assert re.search(r"(chief|worker):\d +- +(never came|not used)", err), err
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"


def test_a_stopped_agent_is_followed_by_another(yarn, on_yarn, disturb, capfd):
    """Its machine does not answer, as far as one can see; there is no other one, and so it is used again."""
    seen = {}

    def act(training):
        step = training.trains_with(3)
        seen.update(training.ranks(3))
        agent = training.agent("worker-1")
        os.kill(agent, signal.SIGSTOP)
        step = training.trains_with(2, after=step)
        training.trains_with(3, after=step)
        seen.update(training.ranks(3))
        yarn.until(lambda: not os.path.exists(f"/proc/{agent}"), "the stopped container is ended")

    disturb(act)
    specs = {"chief": TaskSpec("400 MiB", 1), "worker": TaskSpec("400 MiB", 1)}
    options = {"min_proc": 1, "max_proc": 3, "host_timeout": 8.0}
    assert len(tfcollective.run(train_on, task_specs=specs, **options, **on_yarn())) == 3
    assert {"chief:0", "worker:0", "worker:1", "worker:2"} <= set(seen)
    assert len({one["container"] for one in seen.values()}) == 4
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"


MASTER = "com.anaconda.skein.ApplicationMaster"


@pytest.mark.parametrize("words", [(MASTER, "java"), ("tfcollective_launchers.yarn.master", "python")])
def test_a_lost_masters_job_resumes_from_backup(yarn, on_yarn, disturb, capfd, tmp_path, words):
    """YARN starts the master again, and the submitter follows the job there. The processes are skein's and ours."""
    seen = {}

    def act(training):
        step = training.trains_with(3)
        seen["first"] = training.app_id
        seen["ranks"] = training.ranks(3)
        os.kill(yarn.process(seen["first"], *words), signal.SIGKILL)
        yarn.until((tmp_path / "began").exists, "the job begins again", 300)
        seen["again"] = training.trains_with(3, after=step)
        seen["last"] = training.app_id
        command = [sys.executable, "-m", "tfcollective", "status", seen["last"]]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        seen["status"] = done.stdout
        seen["attempts"] = {one["container"].split("_")[-2] for one in training.ranks(3).values()}

    disturb(act)
    totals = tfcollective.run(train_on, kwargs={"backup": True}, task_specs=TRIO, **on_yarn())
    assert seen["last"] == seen["first"]
    assert seen["attempts"] == {"02"}
    began = [line.split() for line in (tmp_path / "began").read_text().splitlines()]
    assert len(began) == 3
    assert all(int(step) > 0 and restarts == "1" for step, restarts in began)
    assert len(totals) == 3
    assert len(set(totals)) == 1
    last = json.loads((tmp_path / "backup").read_text())
    assert totals[0] == last[1] >= 3.0 * min(int(step) for step, _ in began)
    err = capfd.readouterr().err
    assert f"{seen['first']}: its master was lost: YARN starts it again" in err
    assert "the job was started again once:" in err
    assert "1. because the application's master was lost (attempt 1)" in err
    assert "master: attempt 2; lost before it: 1" in seen["status"], seen["status"]
    assert "3 ranks, 2 to 3 are possible" in seen["status"]
    assert not [one for one in seen["ranks"].values() if os.path.exists(f"/proc/{one['pid']}")]
    assert yarn.latest()["id"] == seen["first"]
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"


def test_losing_masters_too_often_submits_again(yarn, on_yarn, disturb, tmp_path, capfd):
    """All containers end with it, so no rank has the state any longer."""

    def act(training):
        training.trains_with(3)
        first = training.app_id
        os.kill(yarn.process(first, MASTER, "java"), signal.SIGKILL)
        yarn.until(lambda: [app for app in yarn.apps("RUNNING") if app["id"] != first], "the second one runs", 300)
        (tmp_path / "progress").unlink()
        training.trains_with(3)

    disturb(act)
    totals = tfcollective.run(train_on, task_specs=TRIO, max_restarts=1, **on_yarn(master_attempts=1))
    assert len(totals) == 3
    assert len(set(totals)) == 1
    assert "the job was started again once" in capfd.readouterr().err
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"


def test_an_experiment_outlasts_rank_0s_container(yarn, on_yarn, tmp_path, when_all_run):
    specs = {"chief": TaskSpec("1500 MiB", 1), "worker": TaskSpec("1500 MiB", 1, min_instances=0)}
    epochs = 4
    model_dir = tmp_path / "model"

    def kill(app_id):
        os.kill(yarn.process(app_id, AGENT, "chief-0"), signal.SIGKILL)
        (tmp_path / "go").touch()

    when_all_run(kill)
    metrics = tfcollective.run_on_yarn(
        tfcollective.get_safe_experiment_fn("yarn_jobs.elastic_experiment", str(model_dir), epochs),
        specs,
        env=_with_support(on_yarn()["env"]),
        python=sys.executable,
        start_timeout=300,
    )
    assert metrics.results
    assert all(len(history["loss"]) == epochs for history in metrics.results)
    assert (model_dir / "model.keras").exists()
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"


def _with_support(env):
    """So that what is not pickled finds the module of the tests, too."""
    path = filter(None, [env.get("PYTHONPATH"), os.path.dirname(yarn_jobs.__file__)])
    return {**env, "PYTHONPATH": os.pathsep.join(path)}
