"""Plans the processes of a job: pure."""

from __future__ import annotations

import fnmatch
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tfcollective._base.machine.cores import thread_variables
from tfcollective._base.machine.gpus import gpu_variables
from tfcollective._base.settings import PREFIX, TF_CONFIG, VARIABLES, variable, without_outer_job
from tfcollective._base.tasks import EVALUATOR, NO_RANK, TaskKey
from tfcollective._base.topology import Endpoint, Placement
from tfcollective._launch.agent.protocol import WorkerPlan
from tfcollective._launch.plan.hosts import Share
from tfcollective._launch.plan.placement import Slot
from tfcollective._launch.plan.rank_variables import (
    compat_variables,
    engine_variables,
    module_variables,
    newcomer_variables,
    rank_variables,
    tf_config,
)
from tfcollective._launch.plan.spec import JobSpec

# What ranks on other hosts get of the launcher's environment.
_PASSED = (
    *("GLOO_*", "JAX_*", "KERAS_*", "NCCL_*", "OMP_*", "PYTHONPATH", "TF_*", f"{PREFIX}*", "TORCH_*", "XLA_*"),
    *(row.alias.name for row in VARIABLES if row.alias is not None),
)
_OF_A_MACHINE = frozenset(variable(field) for field in ("bind_host", "library", "runtime_dir"))
_THIS_HOST = "localhost"  # Horovod's name for it where no hosts are given
_SECRET_NAMES = ("*KEY*", "*TOKEN*", "*SECRET*", "*PASSWORD*", "*CREDENTIAL*")


@dataclass(frozen=True)
class Plan:
    """The processes of a job: the ranks in rank order, and the auxiliary tasks."""

    workers: tuple[WorkerPlan, ...]
    auxiliary_tasks: tuple[WorkerPlan, ...] = ()

    @property
    def processes(self) -> tuple[WorkerPlan, ...]:
        """All processes of the job."""
        return (*self.workers, *self.auxiliary_tasks)

    @property
    def tasks(self) -> tuple[TaskKey, ...]:
        """The roles of the world, in rank order."""
        return tuple(worker.task for worker in self.workers)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts, in the order of their ranks."""
        return tuple(dict.fromkeys(process.host for process in self.processes))

    def on(self, host: str) -> tuple[WorkerPlan, ...]:
        """The processes of one host."""
        return tuple(process for process in self.processes if process.host == host)


def plan_local(
    spec: JobSpec,
    *,
    cores: int,
    environ: Mapping[str, str],
    gpus: Sequence[str] = (),
) -> Plan:
    """Plans all ranks on one node with ``cores`` cores and these ``gpus``; ``environ`` is what they inherit."""
    share = max(1, cores // spec.num_proc)
    common = {
        **thread_variables(share, environ),
        "PYTHONUNBUFFERED": environ.get("PYTHONUNBUFFERED", "1"),  # a pipe is no terminal, but people watch it
        **_job_variables(spec),
        variable("bind_host"): "127.0.0.1",
        **spec.rank_env,
    }
    plans = []
    for rank, task in enumerate(spec.world):
        place = Placement(rank, spec.num_proc, rank, spec.num_proc, 0, 1)
        added = {
            **gpu_variables(rank, spec.num_proc, {**environ, **spec.rank_env}, gpus),
            variable("task"): str(task),
            **rank_variables(place, spec.rank_env),
            **_script_variables(spec, place, 0, _THIS_HOST, environ),
        }
        plans.append(WorkerPlan(task, rank, spec.command, {**common, **added}, rank))
    return Plan(tuple(plans), _side_plans(spec, common))


def plan_hosts(spec: JobSpec, shares: Sequence[Share], environ: Mapping[str, str]) -> Plan:
    """The ranks on their hosts; ``environ`` is the launcher's, of which they get what :func:`_passed_on` lets through.

    What only the host itself knows (its cores, its address) its agent adds.
    """
    common = {
        **_passed_on(environ, (*_PASSED, *spec.pass_env)),
        "PYTHONUNBUFFERED": "1",
        **_job_variables(spec),
        **spec.rank_env,
    }
    plans = []
    for node, share in enumerate(shares):
        for slot, task in enumerate(spec.world[share.first : share.first + share.count]):
            place = _placement(shares, share, slot)
            added = {
                variable("task"): str(task),
                **rank_variables(place, spec.rank_env),
                **_script_variables(spec, place, node, share.host.name, common),
            }
            plans.append(WorkerPlan(task, place.rank, spec.command, {**common, **added}, slot, share.host.name))
    first = shares[0].host.name  # where rank 0 writes what they read
    return Plan(tuple(plans), _side_plans(spec, common, first))


def plan_newcomer(spec: JobSpec, plan: Plan, task: TaskKey, rank: int, slot: Slot, place: Placement) -> WorkerPlan:
    """Plans a process that joins an elastic job while it runs: like the one of its slot in the plan, else like the
    first one of its role, to which its agent adds what only its host knows.

    Args:
        spec: the job.
        plan: what it began with.
        task: the process's role.
        rank: what its output is labelled with.
        slot: where it runs.
        place: the place that it will have in the world, as far as one knows.
    """
    workers = {(one.host, one.local_rank): one for one in plan.workers}
    others = (one for one in plan.workers if one.task.type == task.type)
    like = workers.get((slot.host, slot.number)) or next(others, plan.workers[0])
    own = {
        **newcomer_variables(place, slot.host or _THIS_HOST, spec.rank_env, compat=spec.horovod_compat),
        variable("task"): str(task),
        variable("newcomer"): str(slot.number),
    }
    if variable("node_id") in like.env:
        own[variable("node_id")] = slot.host  # a node of its own, as that one is
    return replace(like, task=task, rank=rank, env={**like.env, **own}, local_rank=slot.number, host=slot.host)


def with_tf_config(plan: Plan, endpoints: Mapping[TaskKey, Endpoint]) -> Plan:
    """The same processes, of which ranks and evaluators get a TF_CONFIG that says ``endpoints``."""

    def configured(worker: WorkerPlan) -> WorkerPlan:
        if worker.is_auxiliary_task and worker.task.type != EVALUATOR:
            return worker
        return replace(worker, env={**worker.env, TF_CONFIG: tf_config(worker.task, endpoints)})

    return Plan(tuple(map(configured, plan.workers)), tuple(map(configured, plan.auxiliary_tasks)))


def _side_plans(spec: JobSpec, common: Mapping[str, str], host: str = "") -> tuple[WorkerPlan, ...]:
    return tuple(
        WorkerPlan(
            task,
            NO_RANK,
            spec.command_of(task),
            {**common, variable("task"): str(task)},
            host=host,
        )
        for task in spec.auxiliary_tasks
    )


def _placement(shares: Sequence[Share], share: Share, slot: int) -> Placement:
    cross = [other for other in shares if other.count > slot]
    return Placement(
        rank=share.first + slot,
        size=sum(other.count for other in shares),
        local_rank=slot,
        local_size=share.count,
        cross_rank=cross.index(share),
        cross_size=len(cross),
    )


def _passed_on(environ: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    return {
        name: value
        for name, value in without_outer_job(environ).items()
        if name not in _OF_A_MACHINE and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


def describe(plan: Plan) -> str:
    """The plan for people: one block a rank. Values that look like secrets are not shown."""
    lines: list[str] = []
    for worker in plan.processes:
        host = f", host {worker.host}" if worker.host else ""
        if worker.is_auxiliary_task:
            lines.append(f"{worker.task} (outside the world{host})")
        else:
            lines.append(f"rank {worker.rank} ({worker.task}, local rank {worker.local_rank}{host})")
        lines.append(f"  command: {shlex.join(worker.argv)}")
        lines.extend(f"  {name}={value}" for name, value in _shown(worker.env))
    return "\n".join(lines) + "\n"


def _job_variables(spec: JobSpec) -> dict[str, str]:
    timeline = {} if spec.timeline is None else {variable("timeline"): spec.timeline}
    evaluator = {variable("evaluator"): "1"} if any(task.type == EVALUATOR for task in spec.auxiliary_tasks) else {}
    restarts = {variable("max_restarts"): str(spec.max_restarts), variable("restarts"): str(spec.restarts)}
    elastic = {} if spec.bounds is None else {variable("elastic"): "1"}
    parallel = {variable("data_parallel"): "1", variable("batch_norm"): spec.batch_norm} if spec.data_parallel else {}
    ports = {} if spec.port_range is None else {variable("port_range"): str(spec.port_range)}
    return {
        **timeline,
        **evaluator,
        **parallel,
        **ports,
        **elastic,
        **(restarts if spec.max_restarts else {}),
        variable("size"): str(spec.num_proc),
        variable("op_timeout"): f"{spec.op_timeout:g}",
        variable("start_timeout"): f"{spec.start_timeout:g}",
        variable("stall_warning"): f"{spec.stall_warning:g}",
        variable("transport"): spec.transport,
        variable("engine"): spec.engine,
        variable("log_level"): spec.log_level,
    }


def _script_variables(
    spec: JobSpec, place: Placement, node: int, host: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """Returns what ``--horovod-compat``, ``--data-parallel`` or ``--engine horovod`` adds; variables that the user has
    set stay."""
    inherited = {**environ, **spec.rank_env}
    modules = module_variables(inherited, compat=spec.horovod_compat, data_parallel=spec.data_parallel)
    if spec.engine == "horovod":
        return {**engine_variables(place, node, spec.op_timeout), **spec.rank_env, **modules}
    compat = compat_variables(place, host, elastic=spec.bounds is not None) if spec.horovod_compat else {}
    return {**{name: value for name, value in compat.items() if name not in spec.rank_env}, **modules}


def _shown(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in sorted(env):
        secret = any(fnmatch.fnmatch(name.upper(), pattern) for pattern in _SECRET_NAMES)
        yield name, "(not shown)" if secret else shlex.quote(env[name])
