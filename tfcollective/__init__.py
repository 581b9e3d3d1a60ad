"""Synchronous data-parallel training for TensorFlow and Keras.

The public names are resolved when they are used, so that ``import tfcollective`` is cheap and imports neither
numpy nor an HTTP stack nor TensorFlow.
"""

# ruff: noqa: F405  # the names of the star imports, which are for type checkers
from __future__ import annotations

from importlib import import_module  # noqa: TID251  # the imports below show the linter the same arrows
from typing import TYPE_CHECKING, Any

from tfcollective._version import __version__

if TYPE_CHECKING:
    from tfcollective_launchers.yarn.api import run_on_yarn

    from tfcollective.clusters import cluster
    from tfcollective.communicator import Average, Communicator, Max, Min, Product, Sum
    from tfcollective.errors import *  # noqa: F403
    from tfcollective.launch.api import run
    from tfcollective.launch.running.function import get_safe_experiment_fn
    from tfcollective.runtime import *  # noqa: F403
    from tfcollective.task_specs import NodeLabel, TaskSpec, allreduce_topology, single_server_topology

__all__ = [
    "Average",
    "CollectiveAbortedError",
    "CollectiveCancelledError",
    "CollectiveError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "Communicator",
    "ConfigError",
    "CoordinatorError",
    "DeviceError",
    "InternalError",
    "InvalidArgumentError",
    "LaunchError",
    "Max",
    "Min",
    "NodeLabel",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "ProtocolError",
    "RendezvousError",
    "ResourceExhaustedError",
    "StateError",
    "Sum",
    "TaskSpec",
    "TfCollectiveError",
    "TransportError",
    "UnsupportedError",
    "WorkerFailedError",
    "__version__",
    "add_process_set",
    "allreduce_topology",
    "cluster",
    "cross_rank",
    "cross_size",
    "get_communicator",
    "get_safe_experiment_fn",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "process_set_ids_and_ranks",
    "rank",
    "remove_process_set",
    "run",
    "run_on_yarn",
    "shutdown",
    "single_server_topology",
    "size",
    "start_timeline",
    "stop_timeline",
    "task",
]
_OP_NAMES = ("Average", "Max", "Min", "Product", "Sum")
_SPEC_NAMES = ("NodeLabel", "TaskSpec", "allreduce_topology", "single_server_topology")
_HOMES = {
    "Communicator": "tfcollective.communicator",
    "cluster": "tfcollective.clusters",
    "run": "tfcollective.launch.api",
    "run_on_yarn": "tfcollective_launchers.yarn.api",
    "get_safe_experiment_fn": "tfcollective.launch.running.function",
    **dict.fromkeys(_OP_NAMES, "tfcollective.communicator"),
    **dict.fromkeys(_SPEC_NAMES, "tfcollective.task_specs"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tfcollective' has no attribute {name!r}")
    home = "tfcollective.errors" if name.endswith("Error") else _HOMES.get(name, "tfcollective.runtime")
    value = getattr(import_module(home), name)
    globals()[name] = value  # so that the next look-up costs nothing
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
