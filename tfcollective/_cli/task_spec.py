"""``--task-spec ROLE:FIELD=VALUE,...`` as a TaskSpec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from tfcollective._base.errors import ConfigError
from tfcollective._base.task_specs import DEFAULT_MEMORY, DEFAULT_VCORES, TaskSpec, check_task_specs

# By the field's annotation: what reads its text, and what that has to be; any other is taken as it is written.
_KINDS: dict[object, tuple[Callable[[str], Any], str]] = {
    "int": (int, "a whole number"),
    "int | None": (int, "a whole number"),
    "float": (float, "a number of seconds"),
}
_FIELDS = {one.name: _KINDS.get(one.type, (str, "")) for one in fields(TaskSpec)}


def parse_task_specs(texts: Sequence[str], ps_policy: str) -> dict[str, TaskSpec]:
    """The specs of a job, checked. Raises ConfigError that quotes the text."""
    specs: dict[str, TaskSpec] = {}
    for text in texts:
        role, _, assignments = text.partition(":")
        if role in specs:
            raise ConfigError(f"--task-spec {role}: given twice")
        try:
            specs[role] = _parse_fields(assignments)
        except ConfigError as error:
            raise ConfigError(f"--task-spec {text}: {error}") from error
    return check_task_specs(specs, ps_policy)


def _parse_fields(text: str) -> TaskSpec:
    values: dict[str, Any] = {}
    for item in text.split(",") if text else ():
        name, equals, value = item.partition("=")
        if name not in _FIELDS or not equals:
            raise ConfigError(f"expected FIELD=VALUE with a field of {', '.join(_FIELDS)}, got {item!r}")
        read, needed = _FIELDS[name]
        try:
            values[name] = read(value)
        except ValueError as error:
            raise ConfigError(f"{name}: expected {needed}, got {value!r}") from error
    processes = values.get("nb_proc_per_worker", 1)
    return TaskSpec(**{"memory": DEFAULT_MEMORY, "vcores": max(DEFAULT_VCORES, processes), **values})
