"""Elastic jobs on the real YARN: containers and ranks are lost, taken away and given again while the others train."""

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
import yarn_jobs

import tfcollective
from tfcollective import TaskSpec

pytestmark = [pytest.mark.yarn, pytest.mark.kill, pytest.mark.timeout(900)]

TRIO = {
    "chief": TaskSpec("400 MiB", 1),
    "worker": TaskSpec("400 MiB", 1, instances=2, min_instances=1),
}
AGENT = "tfcollective_launchers.yarn.container"


class Training:
    """One job while it trains, as its files show it."""

    def __init__(self, yarn, folder):
        self._yarn = yarn
        self._folder = folder
        self.over = False

    @property
    def app_id(self):
        return self._yarn.only_app()

    def ranks(self, size):
        """What the ranks of the newest world of this size have written, by task, once there are so many."""

        def look():
            files = sorted(self._folder.glob(f"in-{size}-*"), key=lambda one: one.stat().st_mtime_ns)
            known = [json.loads(text) for text in (one.read_text() for one in files) if text]
            alive = {one["task"]: one for one in known if os.path.exists(f"/proc/{one['pid']}")}
            return alive if len(alive) == size else None

        return self._until(look, f"{size} ranks train")

    def trains_with(self, size, after=0):
        """Waits for a step of a world of this size, later than step `after`; which one that is."""

        def look():
            path = self._folder / "progress"
            step, world = map(int, path.read_text().split()) if path.exists() else (0, 0)
            return step if world == size and step > after else None

        return self._until(look, f"a step of {size} ranks")

    def _until(self, look, what):
        found = self._yarn.until(lambda: look() or self.over, what, 300)
        assert not self.over, f"the job is over: not {what}"
        return found

    def agent(self, name):
        return self._yarn.process(self.app_id, AGENT, name)

    def finish(self):
        (self._folder / "finish").touch()


@pytest.fixture
def training(yarn, tmp_path):
    return Training(yarn, tmp_path)


@pytest.fixture
def disturb(training):
    """Runs a function beside a job, and ends the training afterwards; its error is the test's."""
    threads, errors = [], []

    def start(act):
        def run():
            try:
                act(training)
            except BaseException as error:
                errors.append(error)
            training.finish()

        threads.append(threading.Thread(target=run, daemon=True))
        threads[0].start()

    yield start
    training.over = True
    for thread in threads:
        thread.join(600)
    assert not errors, errors


def run(on_yarn, specs=TRIO, **options):
    return tfcollective.run(yarn_jobs.train_on, task_specs=specs, **options, **on_yarn())


def test_a_rank_that_is_killed_is_replaced_in_its_container(yarn, on_yarn, disturb, capfd):
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
    assert "the others went on without it" in capfd.readouterr().err
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


def test_a_container_that_is_asked_to_end_leaves_in_order_and_another_one_is_requested(yarn, on_yarn, disturb, capfd):
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
    assert "went on without it" not in err
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"


def test_a_job_whose_containers_are_not_all_granted_begins_with_fewer(yarn, on_yarn, disturb, capfd):
    """The cluster has room for two of the three containers."""
    specs = {"chief": TaskSpec("2400 MiB", 1), "worker": TaskSpec("2400 MiB", 1, instances=2, min_instances=1)}
    disturb(lambda training: training.trains_with(2))
    options = {"start_timeout": 20.0, **on_yarn(allocation_timeout=30.0)}
    assert len(tfcollective.run(yarn_jobs.train_on, task_specs=specs, **options)) == 2
    err = capfd.readouterr().err
    assert re.search(r"(chief|worker):\d +- +(never came|not used)", err), err
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"


def test_a_job_grows_to_its_largest_world_and_a_stopped_agent_is_followed_by_another_one(yarn, on_yarn, disturb, capfd):
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
    assert len(tfcollective.run(yarn_jobs.train_on, task_specs=specs, **options, **on_yarn())) == 3
    assert {"chief:0", "worker:0", "worker:1", "worker:2"} <= set(seen)
    assert len({one["container"] for one in seen.values()}) == 4
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"


def test_a_job_that_has_lost_its_master_is_submitted_again(yarn, on_yarn, disturb, tmp_path):
    """All containers end with it, so no rank has the state any longer."""

    def act(training):
        training.trains_with(3)
        first = training.app_id
        os.kill(yarn.process(first, "com.anaconda.skein.ApplicationMaster", "java"), signal.SIGKILL)
        yarn.until(lambda: [app for app in yarn.apps("RUNNING") if app["id"] != first], "the second one runs", 300)
        (tmp_path / "progress").unlink()
        training.trains_with(3)

    disturb(act)
    totals = run(on_yarn, max_restarts=1)
    assert len(totals) == 3
    assert len(set(totals)) == 1
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"


def test_an_experiment_goes_on_when_the_container_of_rank_0_is_lost(yarn, on_yarn, tmp_path, when_all_run):
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
