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

#: Where each public name stands.
_HOMES = {
    name: home
    for home, names in {
        "tfcollective.clusters": "cluster",
        "tfcollective.communicator": "Average Communicator Max Min Product Sum",
        "tfcollective.errors": """
            CollectiveAbortedError CollectiveCancelledError CollectiveError CollectiveMismatchError
            CollectiveTimeoutError ConfigError CoordinatorError DeviceError InternalError InvalidArgumentError
            LaunchError PeerLostError ProtocolError RendezvousError ResourceExhaustedError StateError
            TfCollectiveError TransportError UnsupportedError WorkerFailedError
        """,
        "tfcollective.launch.api": "run",
        "tfcollective.launch.running.function": "get_safe_experiment_fn",
        "tfcollective.runtime": """
            ProcessSet add_process_set cross_rank cross_size get_communicator global_process_set init
            is_homogeneous is_initialized local_rank local_size process_set_ids_and_ranks rank
            remove_process_set shutdown size start_timeline stop_timeline task
        """,
        "tfcollective.task_specs": "NodeLabel TaskSpec allreduce_topology single_server_topology",
        "tfcollective_launchers.yarn.api": "run_on_yarn",
    }.items()
    for name in names.split()
}
__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tfcollective' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # so that the next look-up costs nothing
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
