"""A machine of the cluster goes down, with its NodeManager and the containers on it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yarn_jobs
from elastic_jobs import train_on

import tfcollective
from tfcollective import LaunchError, TaskSpec

pytestmark = [pytest.mark.yarn, pytest.mark.kill, pytest.mark.timeout(1500)]

HADOOP = Path(__file__).resolve().parents[2] / "tools" / "hadoop" / "cluster.py"
TRIO = {
    "chief": TaskSpec("400 MiB", 1),
    "worker": TaskSpec("400 MiB", 1, instances=2, min_instances=0),
}
FIXED = {"chief": TaskSpec("400 MiB", 1), "worker": TaskSpec("400 MiB", 1, instances=2)}


class Nodes:
    """The machines that take containers without a label, of which one may be lost."""

    def __init__(self, state, yarn):
        self._state = state
        self._yarn = yarn
        self.lost = None

    def command(self, *words):
        done = subprocess.run(
            [sys.executable, str(HADOOP), *words, "--state", self._state],
            capture_output=True,
            text=True,
            timeout=700,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def of_master(self, app_id):
        """Where the application's master is."""
        return self._yarn.app(app_id)["amHostHttpAddress"].partition(":")[0]

    def lose(self, host):
        self.lost = f"node{host.removeprefix('127.0.0.1')}"
        self.command("lose", self.lost)
        return host


@pytest.fixture
def nodes(yarn, hadoop_state):
    nodes = Nodes(hadoop_state, yarn)
    nodes.command("restart", "node3")
    yield nodes
    if nodes.lost is not None:
        nodes.command("restart", nodes.lost)
    nodes.command("stop", "node3")  # in order: YARN does not count it any longer
    yarn.until(lambda: len(yarn.nodes()) == 2, "the third node has gone", 300)


def test_an_elastic_job_goes_on_on_another_machine(yarn, nodes, on_yarn, disturb, capfd):
    seen = {}

    def act(training):
        step = training.trains_with(3)
        seen["first"] = training.ranks(3)
        away = {one["node"] for one in seen["first"].values()} - {nodes.of_master(training.app_id)}
        assert away, "all containers are on the machine of the master"
        seen["lost"] = nodes.lose(away.pop())
        step = training.trains_with(3, after=training.trains_with(_left(seen), after=step))
        seen["last"] = training.ranks(3)

    disturb(act)
    totals = tfcollective.run(train_on, task_specs=TRIO, **on_yarn())
    assert len(totals) == 3
    assert len(set(totals)) == 1
    assert seen["lost"] not in {one["node"] for one in seen["last"].values()}
    err = capfd.readouterr().err
    assert re.search(rf"the container of \S+ on {re.escape(seen['lost'])} .*has not answered for 15 s", err), err
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"


def _left(seen):
    return sum(one["node"] != seen["lost"] for one in seen["first"].values())


def test_a_fixed_job_names_the_lost_machine(yarn, nodes, on_yarn, when_all_run, tmp_path):
    lost = []

    def lose(app_id):
        agents = [Path(f"/proc/{pid}/cwd").readlink() for pid in yarn.processes(app_id, yarn_jobs.AGENT)]
        hosts = {re.search(r"/data/node(\d)/", str(path))[1] for path in agents}
        away = {f"127.0.0.1{number}" for number in hosts} - {nodes.of_master(app_id)}
        assert away, "all containers are on the machine of the master"
        lost.append(nodes.lose(away.pop()))

    thread = when_all_run(lose, 3)
    with pytest.raises(LaunchError, match="has not answered for 15 s") as caught:
        tfcollective.run(yarn_jobs.go_on, task_specs=FIXED, **on_yarn())
    thread.join(60)
    assert re.search(rf"the container of \S+ on {re.escape(lost[0])} ", str(caught.value)), caught.value


def test_a_job_outlasts_its_masters_machine(yarn, nodes, on_yarn, disturb, tmp_path):
    seen = {}

    def act(training):
        step = training.trains_with(3)
        seen["first"] = training.app_id
        seen["lost"] = nodes.lose(nodes.of_master(training.app_id))
        yarn.until((tmp_path / "began").exists, "the job begins again", 600)
        training.trains_with(3, after=step)
        seen["last"] = training.app_id
        seen["nodes"] = {one["node"] for one in training.ranks(3).values()}

    disturb(act)
    totals = tfcollective.run(train_on, kwargs={"backup": True}, task_specs=TRIO, **on_yarn())
    assert len(totals) == 3
    assert len(set(totals)) == 1
    assert seen["last"] == seen["first"]
    assert seen["lost"] not in seen["nodes"]
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"
