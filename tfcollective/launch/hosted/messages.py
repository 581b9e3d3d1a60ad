"""A job whose launcher runs on the platform, in a container of its own: the values that travel to and fro.

The submitter sends a :class:`HostedJob` with the containers and follows the job from afar (:mod:`submitter_side`). What
runs there (:mod:`platform_side`) is what the launcher's own process is elsewhere: it runs the coordinator, deals
the ranks to the agents of the other containers and sees how they end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tfcollective.errors import ConfigError
from tfcollective.failures import ExitRecord
from tfcollective.launch.launcher import AuxiliaryTaskEnd, JobOutcome, StartFailure
from tfcollective.launch.plan.planner import Plan, WorkerPlan
from tfcollective.launch.plan.spec import FunctionCall, JobSpec
from tfcollective.task_specs import TaskSpec
from tfcollective.tasks import TaskKey

__all__ = [
    "DONE",
    "LEASE",
    "LEASE_S",
    "OUTCOME",
    "STOP",
    "ContainerRow",
    "HostedJob",
    "HostedOutcome",
    "call_of",
]

# Keys in the coordinator's store.
LEASE = "hosted/lease"  # the submitter writes it again and again: its job ends with it
STOP = "hosted/stop"  # the numbers of the signals that the submitter has got
OUTCOME = "hosted/outcome"  # how it all ended
DONE = "hosted/done"  # the submitter has seen that

LEASE_S = 30.0

# What of a job description the platform's side needs nothing of, or gets in another way.
_NOT_SENT = frozenset({"call", "platform", "hosts", "tasks", "task_specs", "key"})
_TUPLES = frozenset({"command", "network_interfaces", "pass_env"})


@dataclass(frozen=True)
class HostedJob:
    """What the platform's side is told: a value that travels as a file of JSON.

    Attributes:
        job_id: the name of the job.
        key: the job key.
        spec: what to run, without the function's bytes.
        plan: its processes; their hosts are the names of containers.
        python: the submitter's interpreter, for which each container takes its own.
        allocation_timeout: how long (s) to wait until all containers are there.
        followed: whether the job ends when the submitter is gone.
    """

    job_id: str
    key: bytes = field(repr=False)
    spec: JobSpec
    plan: Plan
    python: str
    allocation_timeout: float
    followed: bool

    def to_json(self) -> dict[str, Any]:
        """A JSON object that :meth:`from_json` reads."""
        spec = {one.name: getattr(self.spec, one.name) for one in fields(JobSpec) if one.name not in _NOT_SENT}
        return {
            "job_id": self.job_id,
            "key": self.key.hex(),
            "spec": {**spec, "tasks": [str(task) for task in self.spec.tasks]},
            "task_specs": {role: asdict(one) for role, one in self.spec.task_specs.items()},
            "plan": [{**asdict(worker), "task": str(worker.task)} for worker in self.plan.workers],
            "auxiliary_tasks": [{**asdict(worker), "task": str(worker.task)} for worker in self.plan.auxiliary_tasks],
            "python": self.python,
            "allocation_timeout": self.allocation_timeout,
            "followed": self.followed,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], call: FunctionCall | None) -> HostedJob:
        """Reads what :meth:`to_json` wrote; ``call`` is the job's function. ConfigError when it is something else."""
        try:
            spec: dict[str, Any] = {
                key: tuple(value) if key in _TUPLES else value for key, value in document["spec"].items()
            }
            tasks = tuple(TaskKey.parse(task) for task in spec.pop("tasks"))
            specs = {role: TaskSpec(**one) for role, one in document["task_specs"].items()}
            return cls(
                job_id=str(document["job_id"]),
                key=bytes.fromhex(document["key"]),
                spec=JobSpec(**spec, tasks=tasks, task_specs=specs, call=call),
                plan=Plan(*(tuple(map(_worker, document[part])) for part in ("plan", "auxiliary_tasks"))),
                python=str(document["python"]),
                allocation_timeout=float(document["allocation_timeout"]),
                followed=bool(document["followed"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the description of the job cannot be read: {error!r}") from error


def _worker(document: Mapping[str, Any]) -> WorkerPlan:
    argv = tuple(document["argv"])
    return WorkerPlan(**{**document, "argv": argv, "task": TaskKey.parse(document["task"])})


def call_of(spec: JobSpec) -> tuple[bytes, bytes] | None:
    """The function of a job as two files, pickled call and search path, or None when it has none."""
    if spec.call is None:
        return None
    return spec.call.payload, json.dumps(list(spec.call.sys_path)).encode()


@dataclass(frozen=True)
class ContainerRow:
    """One container at the end of a job, for people.

    Attributes:
        name: what it is called.
        tasks: the tasks that ran in it.
        host: where it was; empty when it never came.
        log: where its log can be read, as far as is known.
        duration: how long (s) its tasks ran, or None.
    """

    name: str
    tasks: tuple[str, ...]
    host: str = ""
    log: str = ""
    duration: float | None = None


@dataclass(frozen=True)
class HostedOutcome:
    """How a job ended, and where its containers were. The results of its function stay with the coordinator.

    Attributes:
        outcome: as any launcher has it, without results.
        containers: a row for each.
        training_s: from the first task's start to the last one's end, in seconds, or None.
    """

    outcome: JobOutcome
    containers: tuple[ContainerRow, ...]
    training_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object that :meth:`from_json` reads."""
        outcome = self.outcome
        failure = outcome.start_failure
        return {
            "exits": [record.to_json() for record in outcome.exits],
            "initialised": outcome.initialised,
            "start_failure": None if failure is None else asdict(failure),
            "stopped_by": outcome.stopped_by,
            "agent_failure": outcome.agent_failure,
            "agent_failed_at": outcome.agent_failed_at,
            "host_lost": outcome.host_lost,
            "places": dict(outcome.places),
            "generation": outcome.generation,
            "published": {task: dict(info) for task, info in outcome.published.items()},
            "durations": dict(outcome.durations),
            "auxiliary_tasks": [_auxiliary_task(end) for end in outcome.auxiliary_tasks],
            "containers": [asdict(row) for row in self.containers],
            "training_s": self.training_s,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> HostedOutcome:
        """Reads what :meth:`to_json` wrote; ConfigError when it is something else."""
        try:
            failure = document["start_failure"]
            outcome = JobOutcome(
                exits=tuple(ExitRecord.from_json(record) for record in document["exits"]),
                initialised=bool(document["initialised"]),
                start_failure=None if failure is None else StartFailure(**failure),
                stopped_by=document["stopped_by"],
                agent_failure=document["agent_failure"],
                agent_failed_at=float(document["agent_failed_at"]),
                host_lost=bool(document["host_lost"]),
                places=document["places"],
                generation=document["generation"],
                published=document["published"],
                durations=document["durations"],
                auxiliary_tasks=tuple(_auxiliary_task_end(end) for end in document["auxiliary_tasks"]),
            )
            rows = tuple(ContainerRow(**{**row, "tasks": tuple(row["tasks"])}) for row in document["containers"])
            return cls(outcome, rows, document["training_s"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the outcome of the job cannot be read: {error!r}") from error


def _auxiliary_task(end: AuxiliaryTaskEnd) -> dict[str, Any]:
    return {**asdict(end), "info": dict(end.info), "exit": None if end.exit is None else end.exit.to_json()}


def _auxiliary_task_end(document: Mapping[str, Any]) -> AuxiliaryTaskEnd:
    record = document["exit"]
    return AuxiliaryTaskEnd(**{**document, "exit": None if record is None else ExitRecord.from_json(record)})
