"""What is logged to MLflow about a job, read from a file store. A job does not fail when MLflow does."""

import json
import socket
import sys
from dataclasses import replace

import pytest
from time_limits import within

from tfcollective._base.codec import decode, encode
from tfcollective._base.failures import ExitRecord
from tfcollective._base.task_specs import TaskSpec
from tfcollective._base.tasks import TaskKey
from tfcollective._control.snapshot import JobSnapshot, TaskView
from tfcollective._launch.hosted.messages import HostedOutcome
from tfcollective._launch.launcher import AuxiliaryTaskEnd, JobOutcome, Launcher
from tfcollective._launch.plan.planner import Plan
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.report.tracking import metrics_of, parameters_of, tracking

FIGURES = {"awake_time_ratio": 0.5, "eval_step_mean_duration": 0.01, "last_training_step": 6, "nb_eval_steps": 8}
SPEC = JobSpec(("x", "--password", "sesame"), 1, task_specs={"worker": TaskSpec(1, 1), "evaluator": TaskSpec(1, 1)})

PATIENT = within(60)  # for tests that wait for everything that is logged


class Idle(Launcher):
    def plan(self, spec):
        return Plan(())

    def run(self, spec, *, stop_signals=()):
        return JobOutcome((), True)


def view(step):
    rank0 = TaskView(TaskKey("worker", 0), 0, info={"step": step, "steps_per_second": 2.5, "completed": 3})
    evaluator = TaskView(TaskKey("evaluator", 0), -1, info={"figures": FIGURES, "metrics": {"loss": 0.25}})
    tensorboard = TaskView(TaskKey("tensorboard", 0), -1, info={"url": "http://h:1/"})
    return JobSnapshot("job", (rank0,), (evaluator, tensorboard))


def outcome(code=0):
    end = ExitRecord("worker:0", 0, "n", 7, code, None, 1.0)
    evaluator = AuxiliaryTaskEnd("evaluator:0", None, {"figures": {**FIGURES, "last_training_step": 9}})
    durations = {"worker:0": 12.5}
    return JobOutcome((end,), True, auxiliary_tasks=(evaluator,), durations=durations, earlier=("rank 0 was killed",))


def test_numbers_of_what_tasks_publish():
    assert metrics_of({"completed": 3}) == (0, {})
    assert metrics_of({"step": 4, "steps_per_second": 2.0}) == (4, {"steps_per_second": 2.0})
    step, numbers = metrics_of({"figures": FIGURES, "metrics": {"loss": 0.25, "bad": float("nan"), "flag": True}})
    assert step == 6
    assert numbers == {**FIGURES, "eval.loss": 0.25}


def test_parameters_hold_no_command():
    parameters = parameters_of(SPEC, "Idle")
    assert parameters["tfcollective.instances.evaluator"] == 1
    assert parameters["tfcollective.num_proc"] == 1
    assert "sesame" not in str(parameters)


def test_without_a_tracking_uri_nothing_is_imported(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    launcher = Idle()
    with tracking(launcher, SPEC) as track:
        assert launcher.observers == ()
        track(outcome())


def test_a_uri_without_mlflow_is_a_warning(monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:///nowhere")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "mlflow")
    with tracking(Idle(), SPEC) as track:
        track(outcome())
    assert "MLFLOW_TRACKING_URI is set, but MLflow is not installed: pip install 'tfcollective[mlflow]'" in caplog.text


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A file store; the client that reads it."""
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'tfcollective[mlflow]'")
    uri = (tmp_path / "runs").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(uri)
    yield mlflow.MlflowClient()
    mlflow.set_tracking_uri(None)


def only_run(client):
    experiment = client.get_experiment_by_name("wines")
    (run,) = client.search_runs([experiment.experiment_id])
    return run


@pytest.mark.parametrize(("code", "status"), [(0, "FINISHED"), (3, "FAILED")])
def test_a_job_in_a_file_store(store, monkeypatch, tmp_path, code, status):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "wines")
    launcher = Idle()
    with tracking(launcher, SPEC, PATIENT) as track:
        launcher.observers[0](view(5))
        launcher.observers[0](view(5))
        launcher.observers[0](view(7))
        track(outcome(code))
    assert launcher.observers == ()
    run = only_run(store)
    assert run.info.status == status
    assert run.data.params["tfcollective.launcher"] == "Idle"
    assert run.data.tags["tensorboard.url"] == "http://h:1/"
    assert run.data.metrics["duration_s.worker.0"] == 12.5
    assert run.data.metrics["restarts"] == 1.0
    history = store.get_metric_history(run.info.run_id, "steps_per_second")
    assert [(one.step, one.value) for one in history] == [(5, 2.5), (7, 2.5)]
    steps = [one.step for one in store.get_metric_history(run.info.run_id, "awake_time_ratio")]
    assert (steps, run.data.metrics["eval.loss"]) == ([6, 9], 0.25)
    path = store.download_artifacts(run.info.run_id, "tfcollective/report.json", str(tmp_path))
    with open(path) as file:
        assert json.load(file)["restarts"] == ["rank 0 was killed"]


def test_an_open_run_is_used_and_kept(store, monkeypatch):
    experiment = store.create_experiment("wines")
    run_id = store.create_run(experiment).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    with tracking(Idle(), SPEC, PATIENT) as track:
        track(outcome())
    run = only_run(store)
    assert (run.info.run_id, run.info.status) == (run_id, "RUNNING")
    assert run.data.metrics["duration_s.worker.0"] == 12.5


def test_a_server_that_is_away_costs_a_warning(store, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    sys.modules["mlflow"].set_tracking_uri("http://127.0.0.1:9")
    launcher = Idle()
    with tracking(launcher, SPEC, PATIENT) as track:
        launcher.observers[0](view(5))
        track(outcome())
    assert caplog.text.count("MLflow does not hear of this job") == 1


def test_a_silent_server_delays_nothing(store, monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        sys.modules["mlflow"].set_tracking_uri(url)
        with tracking(Idle(), SPEC, 0.05) as track:
            track(outcome())
    assert "MLflow has not taken everything within 0.05 s" in caplog.text


def test_the_masters_findings_reach_the_submitter():
    known = outcome()
    sent = HostedOutcome(replace(known, published={"worker:0": {"step": 4, "steps_per_second": 2.0}}, earlier=()), ())
    back = decode(encode(sent), HostedOutcome, "the outcome")
    assert back.outcome.published == {"worker:0": {"step": 4, "steps_per_second": 2.0}}
    assert back.outcome.durations == {"worker:0": 12.5}
    assert back.outcome.auxiliary_tasks == known.auxiliary_tasks
