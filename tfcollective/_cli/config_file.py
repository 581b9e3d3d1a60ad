"""Options of ``tfcollective run`` from a YAML file, in horovodrun's form or by the options' own names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from tfcollective._base.errors import ConfigError


def _ignored(names: str) -> dict[str, str | None]:
    return dict.fromkeys(names.split())


# horovodrun's groups, and which of our options a key of theirs is; None: it has no effect here.
_GROUPS: Mapping[str, Mapping[str, str | None]] = {
    "params": {
        "fusion_threshold_mb": "bucket_mb",
        **_ignored("cycle_time_ms cache_capacity hierarchical_allreduce hierarchical_allgather torus_allreduce"),
    },
    "autotune": _ignored(
        "enabled log_file warmup_samples steps_per_sample bayes_opt_max_samples gaussian_process_noise"
    ),
    "timeline": {"filename": "timeline", **_ignored("mark_cycles")},
    "stall_check": {
        "enabled": "no_stall_check",
        "warning_time_seconds": "stall_warning",
        **_ignored("shutdown_time_seconds"),
    },
    "library_options": {
        **_ignored("mpi_threads_disable num_nccl_streams thread_affinity"),
        "gloo_timeout_seconds": "op_timeout",
    },
    "logging": {"level": "log_level", **_ignored("with_timestamp")},
}


def read_config(path: str, command: click.Command) -> dict[str, Any]:
    """Returns the file's options by the names of the command's parameters. Raises ConfigError for unknown ones."""
    try:
        document = yaml.safe_load(read_text("--config-file", path))
    except yaml.YAMLError as error:
        raise ConfigError(f"--config-file: {path} is not YAML: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"--config-file: {path}: expected a mapping from names to values")
    return dict(_read(document, path, _parameters(command)))


def _parameters(command: click.Command) -> dict[str, click.Option]:
    """Options by every name that a file may use: without dashes in front, and with either kind inside."""
    found: dict[str, click.Option] = {}
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.expose_value:
            for name in (*parameter.opts, str(parameter.name)):
                found[name.lstrip("-").replace("-", "_")] = parameter
    return found


def _read(document: Mapping[object, object], path: str, known: Mapping[str, click.Option]) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        name = str(key).replace("-", "_")
        if name == "controller":
            continue  # which of theirs to use; here there is one
        if isinstance(value, dict) and name in _GROUPS:
            yield from _read_group(name, value, path)
        elif name in known:
            yield str(known[name].name), _listed(value) if known[name].multiple else value
        else:
            raise ConfigError(f"--config-file: {path}: unknown name {key!r}: expected the name of an option")


def _read_group(group: str, values: Mapping[object, object], path: str) -> Iterator[tuple[str, Any]]:
    names = _GROUPS[group]
    for key, value in values.items():
        if key not in names:
            raise ConfigError(f"--config-file: {path}: unknown name {group}.{key}: expected one of {', '.join(names)}")
        ours = names[str(key)]
        if ours == "no_stall_check":
            yield ours, not value
        elif ours is not None and value is not None:
            yield ours, value


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def read_text(option: str, path: str) -> str:
    """Returns the file's text; raises ConfigError with option and file if it cannot be read, or is not UTF-8."""
    try:
        return Path(path).read_text("utf-8-sig")  # editors of Windows write a byte-order mark
    except OSError as error:
        raise ConfigError(f"{option}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{option}: {path} is not text in UTF-8: {error}") from error
