"""Builds a job from a user's options, for both the command line and Python calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfcollective._base.errors import ConfigError
from tfcollective._base.options import PATH, by_field, check_names
from tfcollective._base.settings import Settings
from tfcollective._base.task_specs import check_task_specs, trainers_of
from tfcollective._launch.plan.hosts import Host, first_size, usable_hosts
from tfcollective._launch.plan.spec import OPTIONS, FunctionCall, JobSpec

_NO_SIZE = "the number of ranks is missing: give -np N or --task-spec ROLE:instances=N"


def read_options(given: Mapping[str, Any], *, here: bool = True) -> dict[str, Any]:
    """The values of options by name, read from texts or taken from Python code; what is None is left out.

    A relative path is one in the working directory, or stays as it is if the job does not run ``here``. Raises
    ConfigError for an option that is unknown, or a text that means nothing.
    """
    said = by_field(given, OPTIONS)
    check_names(said, {*OPTIONS, "platform"}, "option")
    kept = {"platform", *(name for name, one in OPTIONS.items() if one.kind is PATH and not here)}
    return {name: value if name in kept else OPTIONS[name].read(name, value) for name, value in said.items()}


def build_job(
    command: tuple[str, ...],
    given: Mapping[str, Any],
    settings: Settings,
    *,
    granted: Sequence[Host] = (),
    size: int | None = None,
    instead: str = "",
    call: FunctionCall | None = None,
) -> JobSpec:
    """The job with these options; raises ConfigError for what does not go together.

    Args:
        command: what every rank runs.
        given: what :func:`read_options` has read.
        settings: say what is not given.
        granted: the hosts that the platform has given to this process, for a job that names none.
        size: the number of ranks where nothing says it; None: that is an error.
        instead: the end of that error: what else would say it.
        call: a function to call.
    """
    said = {name: OPTIONS[name].read(name, getattr(settings, name)) for name, one in OPTIONS.items() if one.setting}
    options = {**said, **given}
    specs = options.get("task_specs")
    if specs and options.get("num_proc") is not None:
        raise ConfigError("num_proc (-np) and task_specs (--task-spec) cannot be combined: the specs say how many")
    specs = options["task_specs"] = {} if specs is None else check_task_specs(specs, settings.ps_policy)
    tasks = trainers_of(specs)
    hosts = options["hosts"] = usable_hosts(options.get("hosts") or tuple(granted), options.get("blacklist", ()))
    first, options["min_proc"] = first_size(
        options.pop("num_proc", None),
        min_proc=options.get("min_proc"),
        max_proc=options.get("max_proc"),
        hosts=hosts,
        discovery=options.get("discovery", ()),
        tasks=len(tasks),
    )
    number = size if first is None else first
    if number is None:
        raise ConfigError(_without_size(command, instead))
    return JobSpec(command, number, tasks=tasks, call=call, **options)


def _without_size(command: Sequence[str], instead: str) -> str:
    late = next((word for word in command if word in OPTIONS["num_proc"].flags), None)
    return f"{_NO_SIZE}{instead}" if late is None else f"the number of ranks is missing: put {late} before the command"
