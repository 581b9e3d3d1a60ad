"""From a job to its processes: pure."""

from __future__ import annotations

import fnmatch
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tfcollective.launch.horovod_compat import PYTHONPATH, compat_variables
from tfcollective.launch.spec import JobSpec
from tfcollective.launch.tf_config import tf_config
from tfcollective.settings import TF_CONFIG, variable
from tfcollective.tasks import TaskKey
from tfcollective.topology import Endpoint, Placement

__all__ = ["Plan", "WorkerPlan", "describe", "plan_local"]

# The variables by which numeric libraries and TensorFlow size their thread pools.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
_SECRET_NAMES = ("*KEY*", "*TOKEN*", "*SECRET*", "*PASSWORD*", "*CREDENTIAL*")


@dataclass(frozen=True)
class WorkerPlan:
    """One process: its role, its ranks, its command and what to add to its environment."""

    task: TaskKey
    rank: int
    local_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Plan:
    """All processes of a job, in rank order."""

    workers: tuple[WorkerPlan, ...]

    @property
    def tasks(self) -> tuple[TaskKey, ...]:
        """The roles, in rank order."""
        return tuple(worker.task for worker in self.workers)


def plan_local(
    spec: JobSpec, *, cores: int, environ: Mapping[str, str], endpoints: Mapping[TaskKey, Endpoint] | None = None
) -> Plan:
    """All ranks on one node with ``cores`` cores; ``environ`` is what they inherit.

    ``endpoints`` is what TF_CONFIG is to say, if the ranks are to have one.
    """
    share = max(1, cores // spec.num_proc)
    common = {
        **_thread_variables(share, environ),
        "PYTHONUNBUFFERED": environ.get("PYTHONUNBUFFERED", "1"),  # a pipe is no terminal, but people watch it
        **_job_variables(spec),
        **spec.env,
    }
    plans = [
        WorkerPlan(
            task,
            rank,
            rank,
            spec.command,
            {**common, **_task_variables(task, endpoints), **_horovod_variables(spec, rank, environ)},
        )
        for rank, task in enumerate(spec.world)
    ]
    return Plan(tuple(plans))


def describe(plan: Plan) -> str:
    """The plan for people: one block a rank. Values that look like secrets are not shown."""
    lines: list[str] = []
    for worker in plan.workers:
        lines.append(f"rank {worker.rank} ({worker.task}, local rank {worker.local_rank})")
        lines.append(f"  command: {shlex.join(worker.argv)}")
        lines.extend(f"  {name}={value}" for name, value in _shown(worker.env))
    return "\n".join(lines) + "\n"


def _thread_variables(share: int, environ: Mapping[str, str]) -> dict[str, str]:
    return {name: str(share) for name in _THREAD_VARIABLES if name not in environ}


def _job_variables(spec: JobSpec) -> dict[str, str]:
    timeline = {} if spec.timeline is None else {variable("timeline"): spec.timeline}
    return {
        **timeline,
        variable("size"): str(spec.num_proc),
        variable("bind_host"): "127.0.0.1",
        variable("op_timeout"): f"{spec.op_timeout:g}",
        variable("start_timeout"): f"{spec.start_timeout:g}",
        variable("stall_warning"): f"{spec.stall_warning:g}",
        variable("transport"): spec.transport,
        variable("log_level"): spec.log_level,
    }


def _task_variables(task: TaskKey, endpoints: Mapping[TaskKey, Endpoint] | None) -> dict[str, str]:
    config = {} if endpoints is None else {TF_CONFIG: tf_config(task, endpoints)}
    return {variable("task"): str(task), **config}


def _horovod_variables(spec: JobSpec, rank: int, environ: Mapping[str, str]) -> dict[str, str]:
    """What ``--horovod-compat`` adds; a variable that the user has set for the ranks stays as it is."""
    if not spec.horovod_compat:
        return {}
    place = Placement(rank, spec.num_proc, rank, spec.num_proc, cross_rank=0, cross_size=1)
    added = compat_variables(place, {**environ, **spec.env})
    return {name: value for name, value in added.items() if name not in spec.env or name == PYTHONPATH}


def _shown(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in sorted(env):
        secret = any(fnmatch.fnmatch(name.upper(), pattern) for pattern in _SECRET_NAMES)
        yield name, "(not shown)" if secret else shlex.quote(env[name])
