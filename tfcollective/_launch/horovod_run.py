"""The keyword names of ``horovod.run`` that are no spelling of an option of ours: pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfcollective._base.errors import ConfigError

_WITHOUT_EFFECT = ("use_gloo", "disable_cache")
_PLATFORM = {"ssh_port": "port", "ssh_identity_file": "identity_file", "mpi_args": "args"}


def translate(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with Horovod's names replaced by ours.

    Raises:
        ConfigError: both names of one thing, or an engine that is not the one meant.
    """
    left = dict(options)
    for name in _WITHOUT_EFFECT:
        left.pop(name, None)
    _move(left, "hostfile", "hosts", Path)
    _move(left, "nics", "network_interfaces", lambda names: names if isinstance(names, str) else sorted(names))
    if left.pop("use_mpi", None) and left.setdefault("engine", "mpi") != "mpi":
        raise ConfigError(f"use_mpi asks for the engine mpi, engine={left['engine']!r} for another")
    if left.get("mpi_args") and left.get("engine") != "mpi":
        raise ConfigError("mpi_args are for mpirun: give engine='mpi' or use_mpi=True, too")
    if left.pop("verbose", None):
        left.setdefault("log_level", "info")
    platform = {ours: left.pop(name) for name, ours in _PLATFORM.items() if left.get(name) is not None}
    for name in _PLATFORM:
        left.pop(name, None)
    if platform:
        left["platform"] = {**platform, **left.get("platform", {})}
    return left


def _move(options: dict[str, Any], name: str, ours: str, convert: Callable[[Any], Any]) -> None:
    value = options.pop(name, None)
    if value is None:
        return
    if options.get(ours) is not None:
        raise ConfigError(f"give {ours} or {name}, not both: they mean the same")
    options[ours] = convert(value)
