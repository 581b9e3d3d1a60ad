"""Translates a job into YARN's application, as skein writes it: pure, from values to a mapping. Needs no skein.

The application has one service with one container for every instance of a role: each has its own log, and a container
that is started again is still the same instance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfcollective.launcher import (
    DEFAULT_MEMORY,
    DEFAULT_VCORES,
    SIDE_TYPES,
    TRAINER_TYPES,
    WORKER,
    ConfigError,
    Host,
    JobSpec,
    Plan,
    Share,
    TaskKey,
    TaskSpec,
    WorkerPlan,
    plan_hosts,
    thread_variables,
    variable,
)
from tfcollective_launchers.yarn.environment import Environment, environment_of, source_url
from tfcollective_launchers.yarn.options import YarnOptions

JOB_FILE = "tfcollective-job.json"
CALL_FILE = "tfcollective-call.pickle"
KEY_FILE = "tfcollective.key"
SERVING_FILE = ".tfcollective-serving"  # while the master's process serves the job
_PYTHONPATH = "PYTHONPATH"
_MASTER = "tfcollective_launchers.yarn.master"
_CONTAINER = "tfcollective_launchers.yarn.container"


@dataclass(frozen=True)
class Amount:
    """Memory in MiB, virtual cores, GPUs."""

    memory: int
    vcores: int
    gpus: int = 0

    def holds(self, other: Amount) -> bool:
        """True if ``other`` fits in."""
        return self.memory >= other.memory and self.vcores >= other.vcores and self.gpus >= other.gpus

    def __str__(self) -> str:
        return f"{self.memory} MiB, {self.vcores} vcores" + (f", {self.gpus} gpus" if self.gpus else "")


@dataclass(frozen=True)
class Request:
    """A request for a container: its name and what it needs; ``processes`` is how many run in it. One that is ``later``
    is made while an elastic job runs, not at its start."""

    name: str
    role: str
    amount: Amount
    label: str
    processes: int
    later: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.amount}{f', label {self.label}' if self.label else ''})"


def container_name(instance: TaskKey) -> str:
    """Returns the name of the container of an instance of a role."""
    return f"{instance.type}-{instance.index}"


def requests(spec: JobSpec) -> tuple[Request, ...]:
    """The containers with which a job starts, those of the world in rank order."""
    specs = spec.task_specs or {WORKER: TaskSpec(DEFAULT_MEMORY, DEFAULT_VCORES, instances=spec.num_proc)}
    return tuple(
        Request(
            name=container_name(TaskKey(role, index)),
            role=role,
            amount=Amount(specs[role].memory_mib, specs[role].vcores, specs[role].gpus),
            label=_label(specs[role]),
            processes=specs[role].nb_proc_per_worker,
        )
        for role in (*TRAINER_TYPES, *SIDE_TYPES)
        if role in specs
        for index in range(specs[role].instances)
    )


def further_requests(spec: JobSpec) -> tuple[Request, ...]:
    """The containers for more workers that an elastic job has besides those with which it starts."""
    bounds = spec.bounds
    workers = [request for request in requests(spec) if request.role == WORKER]
    if bounds is None or not workers:
        return ()
    count = -(-(bounds.largest - spec.num_proc) // workers[0].processes)
    names = (container_name(TaskKey(WORKER, len(workers) + number)) for number in range(count))
    return tuple(replace(workers[0], name=name, later=True) for name in names)


def containers_for_ranks(spec: JobSpec) -> tuple[Host, ...]:
    """Returns all containers that an elastic job may have for its ranks, as hosts."""
    wanted = (*requests(spec), *further_requests(spec))
    return tuple(Host(one.name, one.processes) for one in wanted if one.role in TRAINER_TYPES)


def _label(spec: TaskSpec) -> str:
    return str(getattr(spec.label, "value", spec.label))


def plan_containers(spec: JobSpec, environ: Mapping[str, str]) -> Plan:
    """The ranks in their containers; ``environ`` is the submitter's."""
    wanted = {request.name: request for request in requests(spec)}
    shares, first = [], 0
    for request in wanted.values():
        if request.role not in TRAINER_TYPES:
            continue
        shares.append(Share(Host(request.name, request.processes), first, request.processes))
        first += request.processes
    plan = plan_hosts(spec, shares, environ)
    return Plan(
        tuple(_placed(worker, wanted[worker.host], spec) for worker in plan.workers),
        tuple(_placed(worker, wanted[container_name(worker.task)], spec) for worker in plan.auxiliary_tasks),
    )


def _placed(worker: WorkerPlan, request: Request, spec: JobSpec) -> WorkerPlan:
    return replace(worker, host=request.name, env={**_added(request, spec), **worker.env})


def _added(request: Request, spec: JobSpec) -> dict[str, str]:
    """Returns the variables that a process gets from its container: as many threads as it has cores. A container with
    GPUs is a node of its own: its processes see no other GPUs of the host."""
    threads = thread_variables(max(1, request.amount.vcores // request.processes), spec.rank_env)
    return {**threads, variable("node_id"): request.name} if request.amount.gpus else threads


def application(
    spec: JobSpec, options: YarnOptions, staged: Mapping[str, str], archives: Mapping[str, str]
) -> dict[str, Any]:
    """The application.

    Args:
        spec: the job.
        options: the platform's settings.
        staged: the files that only this job has, by what they are called in a container; the master gets all of them,
            the others the key.
        archives: the packed environment by node label, where there is one; ``""`` is that of any other label.

    Raises:
        ConfigError: an environment or a file that cannot be sent.
    """
    wanted = (*requests(spec), *further_requests(spec))
    attempts = options.attempts(elastic=spec.bounds is not None)
    return {
        "name": options.name,
        "queue": options.queue,
        "max_attempts": attempts,
        "acls": options.acl_fields(),
        "file_systems": list(options.file_systems),
        "master": {
            "resources": {"memory": options.master_memory_mib, "vcores": options.master_vcores},
            "script": _script(_environment(options, archives, ""), options, (_MASTER, "$PPID"), lost_with=attempts > 1),
            "files": _files(_environment(options, archives, ""), options, staged),
            "env": _env(spec, options),
        },
        "services": {request.name: _service(request, spec, options, staged, archives) for request in wanted},
    }


def _service(
    request: Request, spec: JobSpec, options: YarnOptions, staged: Mapping[str, str], archives: Mapping[str, str]
) -> dict[str, Any]:
    environment = _environment(options, archives, request.label)
    resources = {"memory": request.amount.memory, "vcores": request.amount.vcores}
    timeout = f"{options.allocation_timeout:g}"
    return {
        "instances": 0 if request.later else 1,
        # The master decides what a container's end means.
        "allow_failures": True,
        "max_restarts": 0,
        "node_label": request.label,
        "resources": {**resources, "gpus": request.amount.gpus} if request.amount.gpus else resources,
        "script": _script(environment, options, (_CONTAINER, request.name, timeout, environment.interpreter)),
        "files": _files(environment, options, {KEY_FILE: staged[KEY_FILE]}),
        "env": _env(spec, options),
    }


def _environment(options: YarnOptions, archives: Mapping[str, str], label: str) -> Environment:
    return environment_of(options.python, archives.get(label, archives.get("")))


def _script(environment: Environment, options: YarnOptions, module: Sequence[str], *, lost_with: bool = False) -> str:
    """Bash. YARN gives a home directory that need not be there, and a directory that is gone afterwards. With
    ``lost_with`` skein's process, which runs this, is killed if a signal ends ours, so that YARN starts both again:
    skein by itself would end the application."""
    run = f"{environment.interpreter} -m {' '.join(module)}"
    kill = f"[ ! -e {SERVING_FILE} ] || ! grep -qa skein /proc/$PPID/cmdline || kill -9 $PPID"
    lines = (
        '[ -w "${HOME:-/}" ] || export HOME="$PWD"',
        f'export {variable("runtime_dir")}="$PWD/.tfcollective"',
        f'export {_PYTHONPATH}="$PWD${{{_PYTHONPATH}:+:${_PYTHONPATH}}}"',
        *environment.setup,
        *options.pre_script_hook.splitlines(),
        *((run, "code=$?", kill, "exit $code") if lost_with else (f"exec {run}",)),
    )
    return "\n".join(lines) + "\n"


def _files(environment: Environment, options: YarnOptions, staged: Mapping[str, str]) -> dict[str, Any]:
    shipped: dict[str, Any] = {**environment.files}
    for target, source in {**options.files, **staged}.items():
        if target in shipped:
            raise ConfigError(f"yarn: files: {target} is a name of the environment's own: choose another")
        kind = "ARCHIVE" if target in options.files and _is_archive(source, target) else "FILE"
        shipped[target] = {"source": source_url(source), "type": kind, "visibility": "APPLICATION"}
    return shipped


def _is_archive(source: str, target: str) -> bool:
    """True if YARN unpacks the file: the target name of a packed directory lacks the archive's ending."""
    return source.endswith((".zip", ".tar.gz", ".tgz")) and not target.endswith((".zip", ".tar.gz", ".tgz"))


def _env(spec: JobSpec, options: YarnOptions) -> dict[str, str]:
    return {
        **options.runtime_variables,
        **spec.rank_env,
        "PYTHONUNBUFFERED": "1",
        variable("log_level"): spec.log_level,
    }
