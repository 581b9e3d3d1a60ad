"""The resources of a job's tasks by role, checked when they are written and when a job is built of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from fractions import Fraction
from functools import partial
from typing import Any

from tfcollective._base.errors import ConfigError
from tfcollective._base.options import TEXT, Kind, Options, count, option, seconds
from tfcollective._base.tasks import (
    CHIEF,
    EVALUATOR,
    PS,
    PS_ADVICE,
    PS_POLICIES,
    SIDE_TYPES,
    TENSORBOARD,
    TRAINER_TYPES,
    WORKER,
    TaskKey,
    trainers,
    workers,
)
from tfcollective._base.timing import unfit_seconds

DEFAULT_MEMORY = "4 GiB"
DEFAULT_VCORES = 2
TENSORBOARD_LINGER_S = 30.0
_ROLES = (*TRAINER_TYPES, *SIDE_TYPES)
_ONE_PROCESS_ROLES = (CHIEF, EVALUATOR, TENSORBOARD)
_BYTES_PER_MIB = 1 << 20
_MEMORY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([a-z]*)")
_PREFIXES = "kmgtp"


class NodeLabel(str, Enum):
    """A label for the nodes of a cluster on which a task may run; any other label is written as plain text."""

    CPU = ""  # nodes without a label
    GPU = "gpu"


def _unfit_linger(value: object) -> str | None:
    needed = unfit_seconds(value, above_zero=False)
    return None if needed is None or value == -1 else f"expected a number, {needed}, or -1 (default), got {value!r}"


_field = partial(option, "", text="")
_LINGER = Kind(seconds().read, _unfit_linger)


@dataclass(frozen=True)
class TaskSpec(Options):
    """The resources of each instance of a role.

    Attributes:
        memory: a number is MiB, a text has a unit (``"2 GiB"``, ``"500 MB"``). Kept as MiB.
        vcores: the number of virtual cores.
        instances: the number of containers (on one machine: groups of processes) of this kind.
        nb_proc_per_worker: the number of processes that an instance runs, each a rank of its own.
        min_instances: of workers: the job is elastic and continues while so many instances are left, with the other
            tasks that train; None: it is not elastic.
        gpus: the number of GPUs.
        label: which nodes: a NodeLabel, or the text of any other label.
        tb_termination_timeout_seconds: how long TensorBoard stays when training has ended; -1: the default.
        tb_model_dir: what TensorBoard shows; None: the experiment's ``model_dir``.
        tb_extra_args: further arguments of TensorBoard's command line.

    Raises:
        ConfigError: names the field and what it may be.
    """

    memory: int | float | str
    vcores: int = _field(count(1), value=...)
    instances: int = _field(count(1), value=1)
    nb_proc_per_worker: int = _field(count(1), value=1)
    gpus: int = _field(count(0), value=0)
    label: str = _field(TEXT, value=NodeLabel.CPU)
    tb_termination_timeout_seconds: float = _field(_LINGER, value=-1)
    tb_model_dir: str | None = _field(TEXT)
    tb_extra_args: str | None = _field(TEXT)
    min_instances: int | None = _field(count(0))

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", memory_in_mib(self.memory))
        super().__post_init__()
        if self.min_instances is not None and self.min_instances > self.instances:
            raise ConfigError(f"min_instances: there are {self.instances} instances, got {self.min_instances}")
        processes = self.nb_proc_per_worker
        if processes > self.vcores:
            raise ConfigError(
                f"nb_proc_per_worker: {processes} processes need {processes} vcores or more, got {self.vcores}"
            )
        if self.gpus and processes > self.gpus:
            raise ConfigError(
                f"nb_proc_per_worker: {processes} processes need {processes} gpus or more, or 0, got {self.gpus}"
            )

    @property
    def memory_mib(self) -> int:
        """The memory in MiB."""
        return int(self.memory)

    @property
    def processes(self) -> int:
        """The number of processes that all instances run."""
        return self.instances * self.nb_proc_per_worker

    @property
    def tensorboard_linger_s(self) -> float:
        """The time that TensorBoard stays when training has ended, in seconds."""
        given = self.tb_termination_timeout_seconds
        return TENSORBOARD_LINGER_S if given == -1 else float(given)


TaskSpecs = Mapping[str, TaskSpec]


def memory_in_mib(memory: Any) -> int:
    """Reads an amount of memory: a number of MiB, or a text with a unit; the result is rounded up to whole MiB.

    Units are ``B``, ``kB`` to ``PB`` (powers of 1000), ``KiB`` to ``PiB`` (powers of 1024), with or without the B, in
    upper or lower case. Raises ConfigError.
    """
    if isinstance(memory, str):
        mib = _parse_memory(memory)
    elif isinstance(memory, int | float) and not isinstance(memory, bool) and math.isfinite(memory):
        mib = math.ceil(memory)
    else:
        raise ConfigError(f"memory: expected a number of MiB, or a string such as '2 GiB', got {memory!r}")
    if mib < 1:
        raise ConfigError(f"memory: expected 1 MiB or more, got {memory!r}")
    return mib


def _parse_memory(text: str) -> int:
    found = _MEMORY.fullmatch("".join(text.split()).lower())
    factor = None if found is None else _unit_bytes(found.group(2))
    if found is None or factor is None:
        raise ConfigError(f"memory: expected a number with a unit such as MiB, GiB or GB, got {text!r}")
    return math.ceil(Fraction(found.group(1)) * factor / _BYTES_PER_MIB)


def _unit_bytes(unit: str) -> int | None:
    """The bytes of a unit in lower case; None for an unknown unit."""
    if not unit:
        return _BYTES_PER_MIB
    prefix = unit.removesuffix("b")
    base = 1024 if prefix.endswith("i") else 1000
    letter = prefix.removesuffix("i")
    if not prefix:
        return 1
    if len(letter) != 1 or letter not in _PREFIXES:
        return None
    return int(base ** (_PREFIXES.index(letter) + 1))


def parse_task_specs(texts: Iterable[str]) -> dict[str, TaskSpec]:
    """Reads specs that are written as ``ROLE:FIELD=VALUE,...``. Raises ConfigError that quotes the text."""
    specs: dict[str, TaskSpec] = {}
    for text in texts:
        role, _, assignments = text.partition(":")
        if role in specs:
            raise ConfigError(f"{role}: given twice")
        try:
            specs[role] = _parse_fields(assignments)
        except ConfigError as error:
            raise ConfigError(f"{text}: {error}") from error
    return specs


def _parse_fields(text: str) -> TaskSpec:
    known = [one.name for one in fields(TaskSpec)]
    values: dict[str, Any] = {}
    for item in text.split(",") if text else ():
        name, equals, values[name] = item.partition("=")
        if name not in known or not equals:
            raise ConfigError(f"expected FIELD=VALUE with a field of {', '.join(known)}, got {item!r}")
    vcores = max(DEFAULT_VCORES, count(1).read(values.get("nb_proc_per_worker", 1)))
    return TaskSpec.of({"memory": DEFAULT_MEMORY, "vcores": vcores, **values})


def check_task_specs(task_specs: Any, ps_policy: str = "error") -> dict[str, TaskSpec]:
    """The specs of a job, checked: known roles, one chief at most, some trainer, auxiliary tasks of one process.

    A ``ps`` entry is refused; with ``ps_policy="exit0"`` it is left out instead. Raises ConfigError that names the
    role, the field and the limit.
    """
    if ps_policy not in PS_POLICIES:
        raise ConfigError(f"ps policy: expected one of {', '.join(PS_POLICIES)}, got {ps_policy!r}")
    if not isinstance(task_specs, Mapping):
        raise ConfigError(f"task_specs: expected a mapping from roles to TaskSpec, got {task_specs!r}")
    checked = {}
    for role, spec in task_specs.items():
        if role == PS and ps_policy == "exit0":
            continue
        _check_role(role, spec)
        checked[role] = spec
    if not any(role in TRAINER_TYPES for role in checked):
        raise ConfigError("task_specs: no task trains: give a chief, workers, or both")
    return checked


def _check_role(role: object, spec: object) -> None:
    if role == PS:
        raise ConfigError(f"task_specs: ps: {PS_ADVICE} (a job description that cannot be changed: --ps-policy exit0)")
    if role not in _ROLES:
        raise ConfigError(f"task_specs: unknown role {role!r}: expected one of {', '.join(_ROLES)}")
    if not isinstance(spec, TaskSpec):
        raise ConfigError(f"task_specs: {role}: expected a TaskSpec, got {spec!r}")
    if role not in _ONE_PROCESS_ROLES:
        return
    if spec.min_instances is not None:
        raise ConfigError(f"task_specs: {role}: min_instances: only workers may be fewer")
    for field in ("instances", "nb_proc_per_worker"):
        if getattr(spec, field) != 1:
            raise ConfigError(f"task_specs: {role}: {field}: expected 1, got {getattr(spec, field)}")


def trainers_of(task_specs: TaskSpecs) -> tuple[TaskKey, ...]:
    """The tasks of the world, in rank order; processes of one instance of workers have consecutive indices."""
    chief = (TaskKey(CHIEF, 0),) if CHIEF in task_specs else ()
    worker = task_specs.get(WORKER)
    return trainers((*chief, *workers(worker.processes if worker is not None else 0)))


def least_trainers_of(task_specs: TaskSpecs) -> int | None:
    """Returns the least number of ranks of a job whose workers may be fewer; None: none may be missing."""
    worker = task_specs.get(WORKER)
    if worker is None or worker.min_instances is None:
        return None
    missing = (worker.instances - worker.min_instances) * worker.nb_proc_per_worker
    return len(trainers_of(task_specs)) - missing


def auxiliary_tasks_of(task_specs: TaskSpecs) -> tuple[TaskKey, ...]:
    """The tasks outside the world."""
    return tuple(TaskKey(role, 0) for role in SIDE_TYPES if role in task_specs)


def single_server_topology(memory: int | str = DEFAULT_MEMORY, vcores: int = DEFAULT_VCORES) -> dict[str, TaskSpec]:
    """A chief that trains alone, an evaluator and a TensorBoard.

    Args:
        memory: of each, as in :class:`TaskSpec`.
        vcores: of each.
    """
    return {role: TaskSpec(memory, vcores) for role in (CHIEF, EVALUATOR, TENSORBOARD)}


def allreduce_topology(
    nb_workers: int = 2,
    memory: int | str = DEFAULT_MEMORY,
    vcores: int = DEFAULT_VCORES,
    *,
    nb_proc_per_worker: int = 1,
    gpus: int = 0,
    label: str = NodeLabel.CPU,
    evaluator: bool = True,
    tensorboard: bool = True,
) -> dict[str, TaskSpec]:
    """A chief and ``nb_workers`` workers that train together, with an evaluator and a TensorBoard.

    Args:
        nb_workers: the number of workers, without the chief; 0 or more.
        memory: of each container; MiB, or a text with a unit.
        vcores: of each container.
        nb_proc_per_worker: how many processes each worker's container runs; the chief's runs one.
        gpus: of the chief's and of each worker's container.
        label: of the chief's and of each worker's nodes; the auxiliary tasks need none.
        evaluator: whether there is one.
        tensorboard: whether there is one.

    Raises:
        ConfigError: names the argument and what it may be.
    """
    problem = count(0).problem(nb_workers)
    if problem is not None:
        raise ConfigError(f"nb_workers: {problem}")
    specs = {CHIEF: TaskSpec(memory, vcores, gpus=gpus, label=label)}
    if nb_workers:
        specs[WORKER] = TaskSpec(memory, vcores, nb_workers, nb_proc_per_worker, gpus, label)
    for role, wanted in ((EVALUATOR, evaluator), (TENSORBOARD, tensorboard)):
        if wanted:
            specs[role] = TaskSpec(memory, vcores)
    return specs
