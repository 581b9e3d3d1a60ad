"""Tasks outside the world, as real processes: they come and go without training noticing, and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys

import pytest
from launching import JOIN, Run, run, until
from time_limits import within

import tfcollective
from tfcollective import TaskSpec
from tfcollective import _runtime as runtime
from tfcollective._base.experiment import Trainable

pytestmark = pytest.mark.multiprocess

ROLES = ("--task-spec", "chief", "--task-spec", "worker", "--task-spec", "evaluator")
BY_ROLE = """
import os, sys, time
from pathlib import Path
role = os.environ["TFCOLLECTIVE_TASK"].partition(":")[0]
here = Path(sys.argv[1])
def wait_for(path):
    while not path.exists():
        time.sleep(0.02)  # another process makes the file
"""


def program(text):
    return sys.executable, "-c", BY_ROLE + text


class Watched(Trainable):
    """An experiment whose evaluator sees the end of training."""

    def __init__(self, directory):
        self.directory = directory

    def train(self):
        runtime.init()
        until((self.directory / "evaluating").exists, 60)
        return runtime.rank(), runtime.size()

    def evaluate(self):
        runtime.init()
        ended = [runtime.training_ended()]
        runtime.publish({"figures": {"last_training_step": 7, "nb_eval_steps": 3}})
        (self.directory / "evaluating").touch()
        until(runtime.training_ended)
        runtime.publish({"saw": ended})


def test_an_evaluators_death_does_not_stop_training(tmp_path):
    text = """
if role == "evaluator":
    sys.stderr.write("no data\\n")
    sys.exit(3)
if role == "chief":
    from tfcollective._control.client.client import CoordinatorClient
    from tfcollective._control.identity import discover
    from tfcollective._control.messages import Status
    from tfcollective._base.settings import Settings
    me = discover(Settings.load(), {})
    client = CoordinatorClient(me.coordinator, me.key)
    while not any(task.state == "failed" for task in client.call(Status()).all_tasks):
        time.sleep(0.05)  # the status has no call that waits
    print("trained", flush=True)
"""
    code, out, err = run("--log-dir", str(tmp_path / "logs"), *ROLES, *program(text), str(tmp_path))
    assert code == 0, err
    assert "[0]<stdout>: trained" in out
    assert "[evaluator]<stderr>: no data" in err
    assert "exited with code 3: training continues without it" in err
    report = err[err.index("tfcollective: warning: evaluator:0") :]
    assert "exited with code 3; training did not need it" in report
    assert "no data" in report
    assert (tmp_path / "logs" / "evaluator" / "stderr").read_text() == "no data\n"


def test_an_evaluator_sees_the_end_and_reports(tmp_path, capfd):
    spec = TaskSpec(512, 1)
    results = tfcollective.run(
        Watched, (tmp_path,), task_specs={"chief": spec, "worker": spec, "evaluator": spec}, log_level="error"
    )
    assert results == [(0, 2), (1, 2)]
    assert results.auxiliary_tasks["evaluator:0"] == {
        "figures": {"last_training_step": 7, "nb_eval_steps": 3},
        "saw": [False],
    }
    assert "evaluator:0: last training step 7, 3 evaluation steps" in capfd.readouterr().err


def test_an_evaluator_that_does_not_end_is_killed(tmp_path):
    text = "if role == 'evaluator': time.sleep(600)"
    code, _, err = run("--evaluator-grace", "0.2", *ROLES, *program(text), str(tmp_path))
    assert code == 0, err
    assert "had not ended 0.2 s after training, and was killed" in err


def test_auxiliary_tasks_end_when_training_fails(tmp_path):
    text = """
if role == "evaluator":
    (here / "there").touch()
    time.sleep(600)
wait_for(here / "there")
sys.exit(5 if role == "worker" else 0)
"""
    code, _, err = run(*ROLES, *program(text), str(tmp_path))
    assert code == 5
    assert "the job failed: rank 1 (worker:0" in err
    assert "evaluator:0" not in err  # it was stopped, and that is no failure


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_behind(tmp_path, number):
    text = "(here / role).touch(); time.sleep(600)"
    with Run((*ROLES, *program(text), str(tmp_path))) as job:
        until(lambda: all((tmp_path / role).exists() for role in ("chief", "worker", "evaluator")))
        assert len(job.workers()) == 3
        job.signal(number)
        job.finish(30)
        job.wait_until_gone(15)


def test_status_shows_what_an_evaluator_says(tmp_path):
    text = """
import tfcollective
from tfcollective import _runtime as runtime
if role == "evaluator":
    tfcollective.init()
    figures = {"last_training_step": 12, "nb_eval_steps": 30}
    runtime.publish({"figures": figures, "metrics": {"loss": float("nan")}})
    (here / "said").touch()
wait_for(here / "end")
"""
    env = {"TFCOLLECTIVE_RUNTIME_DIR": str(tmp_path / "runtime")}
    (tmp_path / "runtime").mkdir(mode=0o700)
    with Run((*ROLES, *program(text), str(tmp_path)), env) as job:
        until((tmp_path / "said").exists)
        command = [sys.executable, "-m", "tfcollective", "status"]
        options = {"env": {**os.environ, **env, "COLUMNS": "200"}, "text": True, "check": True, "timeout": within(60)}
        table = subprocess.run(command, capture_output=True, **options).stdout
        (found,) = json.loads(subprocess.run([*command, "--json"], capture_output=True, **options).stdout)
        (tmp_path / "end").touch()
        assert job.finish(30)[0] == 0
    assert "last training step 12" in table
    assert "loss NaN" in table
    (evaluator,) = found["auxiliary_tasks"]
    assert (evaluator["task"]["type"], evaluator["state"]) == ("evaluator", "running")
    assert evaluator["info"]["figures"]["nb_eval_steps"] == 30


def test_a_task_outside_the_world_cannot_join_it(tmp_path):
    text = "if role == 'evaluator':\n    " + "\n    ".join((JOIN + "join()").splitlines())
    code, _, err = run(*ROLES, *program(text), str(tmp_path))
    assert code == 0
    assert "evaluator:0 is outside the world: it cannot join" in err
