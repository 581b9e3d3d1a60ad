"""The metrics of a job, as Prometheus reads them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tfcollective._base.tasks import TaskKey, workers
from tfcollective._control.snapshot import JobSnapshot, TaskState, TaskView, WorldChange
from tfcollective._launch.web.history import JobHistory
from tfcollective._launch.web.metrics import metrics_text

pytest.importorskip("prometheus_client", reason="it is not installed: pip install 'tfcollective[web]'")

CHANGES = (
    WorldChange(2, 1, (TaskKey("worker", 1),), (), 0.5, at=99.0, detect=0.25, after={"sync": 2.0}),
    WorldChange(3, 2, (), (TaskKey("worker", 2),), 1.0, at=100.0, detect=0.25),
    WorldChange(4, 1, (TaskKey("worker", 2),), (), 0.0, at=101.0),
)


def samples(*jobs):
    """The values by name and labels."""
    from prometheus_client.parser import text_string_to_metric_families

    history = JobHistory()
    for job in jobs:
        history.take(job)
    families = text_string_to_metric_families(metrics_text(history).decode())
    return {
        (one.name.removeprefix("tfcollective_"), *one.labels.values()): one.value for f in families for one in f.samples
    }


def job(**info):
    tasks = tuple(
        TaskView(
            task, rank, TaskState.RUNNING, last_heartbeat=90.0, info={"completed": 5, **(info if not rank else {})}
        )
        for rank, task in enumerate(workers(2))
    )
    return JobSnapshot("job-1", tasks, at=100.0, time=1100.0, generation=3, members=workers(2))


def test_nothing_is_known_before_the_first_snapshot():
    assert samples() == {}


def test_figures_have_base_units():
    found = samples(job(step=7, steps_per_second=4.0, loss=0.5))
    assert found["world_size",] == 2
    assert found["world_generation",] == 3
    assert (found["ranks", "running"], found["ranks", "failed"]) == (2, 0)
    assert (found["steps_total", "0"], found["step_duration_seconds",], found["loss",]) == (7, 0.25, 0.5)
    assert found["last_step_timestamp_seconds", "0"] == 1100.0
    assert [found["last_heartbeat_timestamp_seconds", rank] for rank in "01"] == [1090.0] * 2
    assert [found["collectives_total", rank] for rank in "01"] == [5, 5]


def test_what_is_not_known_is_left_out():
    found = samples(job())
    assert not {name for name, *_ in found} & {
        "steps_total",
        "step_duration_seconds",
        "loss",
        "last_step_timestamp_seconds",
    }


def test_changes_are_counted_by_cause_and_phase():
    found = samples(replace(job(), changes=CHANGES, leavers={"worker:2": "SIGTERM"}))
    assert [found["world_changes_total", cause] for cause in ("lost", "joined", "left")] == [1, 1, 1]
    assert (found["recovery_seconds_total", "detect"], found["recovery_seconds_total", "sync"]) == (0.5, 2.0)


def test_changes_are_counted_from_zero():
    assert [samples(job())["world_changes_total", cause] for cause in ("lost", "left", "joined")] == [0, 0, 0]


def test_alerts_name_metrics_that_exist():
    text = (Path(__file__).parents[3] / "examples" / "prometheus" / "alerts.yml").read_text()
    named = set(re.findall(r"tfcollective_(\w+)", text))
    assert len(named) == 4
    assert named <= {name for name, *_ in samples(job(step=7))}


def test_a_restart_is_counted():
    assert samples(job(), replace(job(), job="job-2"))["restarts_total",] == 1
