"""``--task-spec ROLE:FIELD=VALUE,...`` as a TaskSpec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tfcollective.errors import ConfigError
from tfcollective.task_specs import DEFAULT_MEMORY, DEFAULT_VCORES, TaskSpec, check_task_specs

__all__ = ["parse_task_specs"]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(f"a whole number, not {text!r}") from error


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"a number of seconds, not {text!r}") from error


_FIELDS: dict[str, Callable[[str], Any]] = {
    "memory": str,
    "vcores": _whole,
    "instances": _whole,
    "nb_proc_per_worker": _whole,
    "gpus": _whole,
    "label": str,
    "tb_termination_timeout_seconds": _seconds,
    "tb_model_dir": str,
    "tb_extra_args": str,
}


def parse_task_specs(texts: Sequence[str], ps_policy: str) -> dict[str, TaskSpec]:
    """The specs of a job, checked. Raises ConfigError that quotes the text."""
    specs: dict[str, TaskSpec] = {}
    for text in texts:
        role, _, fields = text.partition(":")
        if role in specs:
            raise ConfigError(f"--task-spec {role}: given twice")
        try:
            specs[role] = _parse_fields(fields)
        except ConfigError as error:
            raise ConfigError(f"--task-spec {text}: {error}") from error
    return check_task_specs(specs, ps_policy)


def _parse_fields(text: str) -> TaskSpec:
    values: dict[str, Any] = {}
    for item in text.split(",") if text else ():
        name, equals, value = item.partition("=")
        if name not in _FIELDS or not equals:
            raise ConfigError(f"FIELD=VALUE with a field of {', '.join(_FIELDS)}, not {item!r}")
        try:
            values[name] = _FIELDS[name](value)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
    processes = values.get("nb_proc_per_worker", 1)
    return TaskSpec(**{"memory": DEFAULT_MEMORY, "vcores": max(DEFAULT_VCORES, processes), **values})
