"""The batch script that runs a job inside an allocation: pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from tfcollective.launcher import DEFAULT_MEMORY, DEFAULT_VCORES, TIMING, JobSpec, Settings, TaskSpec, from_settings
from tfcollective_launchers.slurm.options import SlurmOptions

_NOTICE_S = 60  # at least

_Words = Callable[[Any], tuple[str, ...]]


def _value(option: str) -> _Words:
    return lambda value: (option, _text(value))


def _each(option: str) -> _Words:
    return lambda values: tuple(word for value in values for word in (option, str(value)))


def _flag(option: str) -> _Words:
    return lambda value: (option,)


#: By the field of a job that is not as it is by default: the words of ``tfcollective run`` that say so.
OPTIONS: Mapping[str, _Words] = {
    "env": lambda env: tuple(word for name in env for word in ("--env", f"{name}={env[name]}")),
    "cwd": _value("--cwd"),
    "log_dir": _value("--log-dir"),
    "prefix": _flag("--no-prefix"),
    "timestamps": _flag("--prefix-output-with-timestamp"),
    "log_level": _value("--log-level"),
    "grace": _value("--grace"),
    "preemption_file": _value("--preemption-file"),
    "preemption_command": lambda words: ("--preemption-command", shlex.join(words)),
    "start_timeout": _value("--start-timeout"),
    "op_timeout": _value("--op-timeout"),
    "stall_warning": _value("--stall-warning"),
    "transport": _value("--transport"),
    "port_range": _value("--port-range"),
    "engine": _value("--engine"),
    "timeline": _value("--timeline"),
    "emit_tf_config": _flag("--emit-tf-config"),
    "horovod_compat": _flag("--horovod-compat"),
    "network_interfaces": _each("--network-interface"),
    "evaluator_grace": _value("--evaluator-grace"),
    "host_timeout": _value("--host-timeout"),
    "min_proc": _value("--min-np"),
    "max_proc": _value("--max-np"),
    "reset_limit": _value("--reset-limit"),
    "on_error": _value("--on-error"),
    "cooldown_range": lambda pair: ("--blacklist-cooldown-range", *(f"{seconds:g}" for seconds in pair)),
    "blacklist": _each("--blacklist"),
    "elastic_timeout": _value("--elastic-timeout"),
    "warm_spares": _flag("--no-warm-spares"),
    "max_restarts": _value("--max-restarts"),
}
#: Fields that are said in another way, that SLURM sees to, or that a job has while it runs only.
ELSEWHERE = frozenset(
    (
        *("command", "num_proc", "tasks", "task_specs", "platform", "call", "hosts", "discovery", "slots"),
        *("pass_env", "restarts", "first_generation", "key"),
    )
)


def run_words(spec: JobSpec, options: SlurmOptions) -> tuple[str, ...]:
    """The command that runs the job inside an allocation."""
    return (
        *(options.python, "-m", "tfcollective", "run", "--launcher", "slurm"),
        *_processes(spec),
        *_changed(spec),
        *(("--requeue",) if options.requeue else ()),
        *(("--srun-args", shlex.join(options.srun_args)) if options.srun_args else ()),
        "--",
        *spec.command,
    )


def batch_script(spec: JobSpec, options: SlurmOptions, command: tuple[str, ...]) -> str:
    """What sbatch gets: it runs ``command`` on the first node of an allocation for the job."""
    lines = [f"#SBATCH {line}" for line in _directives(spec, options)]
    # exec: the launcher takes the shell's place, and gets the signals that SLURM sends to that alone.
    return "\n".join(["#!/bin/bash", *lines, "", f"exec {shlex.join(command)}", ""])


def _directives(spec: JobSpec, options: SlurmOptions) -> Iterator[str]:
    yield _directive("job-name", options.name)
    yield _directive("ntasks", max(spec.num_proc, spec.max_proc or 0))
    for name in ("nodes", "ntasks_per_node", "cpus_per_task", "gpus_per_node", "gres", "mem"):
        if getattr(options, name) is not None:
            yield _directive(name.replace("_", "-"), getattr(options, name))
    for name in ("partition", "account", "qos", "time", "constraint", "output"):
        if getattr(options, name) is not None:
            yield _directive(name, getattr(options, name))
    notice = max(_NOTICE_S, math.ceil(spec.grace + TIMING.notice))
    yield f"--signal=B:TERM@{notice}"
    if options.requeue:
        yield "--requeue"
        yield "--open-mode=append"
    else:
        yield "--no-requeue"
    if spec.bounds is not None:
        yield "--no-kill"  # SLURM ends a job that loses a node, else
    yield from map(shlex.quote, options.sbatch_args)


def _directive(name: str, value: object) -> str:
    return f"--{name}={shlex.quote(str(value))}"


def _processes(spec: JobSpec) -> tuple[str, ...]:
    if not spec.task_specs:
        return ("-np", str(spec.num_proc))
    return tuple(
        word for role, task in spec.task_specs.items() for word in ("--task-spec", f"{role}:{_task_fields(task)}")
    )


def _task_fields(task: TaskSpec) -> str:
    usual = TaskSpec(DEFAULT_MEMORY, max(DEFAULT_VCORES, task.nb_proc_per_worker))
    changed = {
        one.name: getattr(task, one.name) for one in fields(task) if getattr(task, one.name) != getattr(usual, one.name)
    }
    if "memory" in changed:
        changed["memory"] = f"{task.memory_mib} MiB"
    return ",".join(f"{name}={_text(value)}" for name, value in changed.items())


def _text(value: object) -> str:
    if isinstance(value, Enum):
        value = value.value
    return f"{value:g}" if isinstance(value, float) else str(value)


def _changed(spec: JobSpec) -> Iterator[str]:
    """The options for what is not as it is by default, or as variables of this process say."""
    usual = JobSpec(spec.command, spec.num_proc)
    said = from_settings(Settings.load())
    for name, words in OPTIONS.items():
        value = getattr(spec, name)
        if value != getattr(usual, name) or value != said.get(name, value):
            yield from words(value)
