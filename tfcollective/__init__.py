"""Synchronous data-parallel training for TensorFlow and Keras.

The public names are resolved when they are used, so that ``import tfcollective`` is cheap and imports neither
numpy nor an HTTP stack nor TensorFlow.
"""

from __future__ import annotations

from importlib import import_module  # noqa: TID251  # the imports below show the linter the same arrows
from typing import TYPE_CHECKING, Any

from tfcollective._version import __version__

if TYPE_CHECKING:
    from tfcollective_launchers.yarn.api import run_on_yarn as run_on_yarn

    from tfcollective.clusters import cluster as cluster
    from tfcollective.communicator import Average as Average
    from tfcollective.communicator import Communicator as Communicator
    from tfcollective.communicator import Max as Max
    from tfcollective.communicator import Min as Min
    from tfcollective.communicator import Product as Product
    from tfcollective.communicator import Sum as Sum
    from tfcollective.errors import CollectiveAbortedError as CollectiveAbortedError
    from tfcollective.errors import CollectiveCancelledError as CollectiveCancelledError
    from tfcollective.errors import CollectiveError as CollectiveError
    from tfcollective.errors import CollectiveMismatchError as CollectiveMismatchError
    from tfcollective.errors import CollectiveTimeoutError as CollectiveTimeoutError
    from tfcollective.errors import ConfigError as ConfigError
    from tfcollective.errors import CoordinatorError as CoordinatorError
    from tfcollective.errors import DeviceError as DeviceError
    from tfcollective.errors import InternalError as InternalError
    from tfcollective.errors import InvalidArgumentError as InvalidArgumentError
    from tfcollective.errors import LaunchError as LaunchError
    from tfcollective.errors import PeerLostError as PeerLostError
    from tfcollective.errors import ProtocolError as ProtocolError
    from tfcollective.errors import RendezvousError as RendezvousError
    from tfcollective.errors import ResourceExhaustedError as ResourceExhaustedError
    from tfcollective.errors import StateError as StateError
    from tfcollective.errors import TfCollectiveError as TfCollectiveError
    from tfcollective.errors import TransportError as TransportError
    from tfcollective.errors import UnsupportedError as UnsupportedError
    from tfcollective.errors import WorkerFailedError as WorkerFailedError
    from tfcollective.launch.api import run as run
    from tfcollective.launch.running.function import get_safe_experiment_fn as get_safe_experiment_fn
    from tfcollective.runtime import ProcessSet as ProcessSet
    from tfcollective.runtime import add_process_set as add_process_set
    from tfcollective.runtime import cross_rank as cross_rank
    from tfcollective.runtime import cross_size as cross_size
    from tfcollective.runtime import get_communicator as get_communicator
    from tfcollective.runtime import global_process_set as global_process_set
    from tfcollective.runtime import init as init
    from tfcollective.runtime import is_homogeneous as is_homogeneous
    from tfcollective.runtime import is_initialized as is_initialized
    from tfcollective.runtime import local_rank as local_rank
    from tfcollective.runtime import local_size as local_size
    from tfcollective.runtime import process_set_ids_and_ranks as process_set_ids_and_ranks
    from tfcollective.runtime import rank as rank
    from tfcollective.runtime import remove_process_set as remove_process_set
    from tfcollective.runtime import shutdown as shutdown
    from tfcollective.runtime import size as size
    from tfcollective.runtime import start_timeline as start_timeline
    from tfcollective.runtime import stop_timeline as stop_timeline
    from tfcollective.runtime import task as task
    from tfcollective.task_specs import NodeLabel as NodeLabel
    from tfcollective.task_specs import TaskSpec as TaskSpec
    from tfcollective.task_specs import allreduce_topology as allreduce_topology
    from tfcollective.task_specs import single_server_topology as single_server_topology

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
