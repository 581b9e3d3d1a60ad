"""The state of a job in Prometheus's text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tfcollective._base.version import __version__
from tfcollective._control.snapshot import JobSnapshot, TaskState, WorldChange
from tfcollective._launch.web.history import JobHistory

#: The type of the text, as Prometheus asks for it.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_CAUSES = ("lost", "left", "joined")


def metrics_text(history: JobHistory) -> bytes:
    """The metrics of the job as they are now. Raises ModuleNotFoundError without prometheus_client."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Collector(history))
    text: bytes = generate_latest(registry)
    return text


class _Collector:
    """Makes families of metrics from the newest snapshot; what the job does not know is left out."""

    def __init__(self, history: JobHistory) -> None:
        self._history = history

    def collect(self) -> Iterator[Any]:
        """See :class:`prometheus_client.registry.Collector`."""
        job = self._history.job
        if job is not None:
            yield from self._of_job(job)
            yield from self._of_ranks(job)
            yield from _of_changes(job)

    def _of_job(self, job: JobSnapshot) -> Iterator[Any]:
        yield _gauge("job_info", "The job.", ("job_id", "version"), {(job.job, __version__): 1})
        yield _gauge("world_size", "Ranks in the world.", (), {(): len(job.members)})
        yield _gauge("world_generation", "Generation of the world; 0 before the first.", (), {(): job.generation})
        states = Counter(one.state for one in job.tasks)
        yield _gauge("ranks", "Processes by state.", ("state",), {(one.value,): states[one] for one in TaskState})
        restarts = len(self._history.restarts)
        yield _counter("restarts", "How often all ranks were started again.", (), {(): restarts})
        points = self._history.points
        if points and points[-1].steps_per_second:
            mean = 1.0 / points[-1].steps_per_second
            yield _gauge("step_duration_seconds", "Mean time of a step over the last seconds.", (), {(): mean})
        if points and points[-1].loss is not None:
            yield _gauge("loss", "Loss that rank 0 has published last.", (), {(): points[-1].loss})

    def _of_ranks(self, job: JobSnapshot) -> Iterator[Any]:
        ranks = {(str(rank),): one for one in job.tasks if (rank := job.rank_of(one)) is not None}
        steps = {key: one.info["step"] for key, one in ranks.items() if isinstance(one.info.get("step"), int)}
        yield _counter("steps", "Training steps, of ranks that publish them.", ("rank",), steps)
        last = {key: when for key in steps if (when := self._history.moved(ranks[key].task)) is not None}
        text = "When the published step was first seen; it is published every few seconds."
        yield _gauge("last_step_timestamp_seconds", text, ("rank",), last)
        done = {key: one.info["completed"] for key, one in ranks.items() if isinstance(one.info.get("completed"), int)}
        yield _counter("collectives", "Collectives of this process, as its last heartbeat said.", ("rank",), done)
        heard = {key: job.calendar(at) for key, one in ranks.items() if (at := one.last_heartbeat) is not None}
        yield _gauge("last_heartbeat_timestamp_seconds", "When the last heartbeat came.", ("rank",), heard)


def _of_changes(job: JobSnapshot) -> Iterator[Any]:
    counted = Counter(_cause(job, change) for change in job.changes)
    causes = {(one,): counted[one] for one in _CAUSES}  # from 0 on: Prometheus sees no increase of what was not there
    yield _counter("world_changes", "Changes of the world since the job was started.", ("cause",), causes)
    spent: dict[tuple[str], float] = {}
    for change in job.changes:
        spent.update({(phase,): spent.get((phase,), 0.0) + seconds for phase, seconds in change.phases.items()})
    yield _counter("recovery_seconds", "Time that changes of the world took.", ("phase",), spent)


def _cause(job: JobSnapshot, change: WorldChange) -> str:
    if not change.lost:
        return "joined"
    return "left" if all(str(task) in job.leavers for task in change.lost) else "lost"


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Any) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(f"tfcollective_{name}", text, labels=labels), values)


def _counter(name: str, text: str, labels: tuple[str, ...], values: Any) -> Any:
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(f"tfcollective_{name}", text, labels=labels), values)


def _filled(family: Any, values: Any) -> Any:
    for labels, value in values.items():
        family.add_metric(list(labels), value)
    return family
