"""Synchronous data-parallel training for TensorFlow and Keras.

The public names are resolved when they are used, so that ``import tfcollective`` is cheap and imports neither
numpy nor an HTTP stack nor TensorFlow.
"""

from __future__ import annotations

from importlib import import_module  # noqa: TID251  # the imports below show the linter the same arrows
from typing import TYPE_CHECKING, Any

from tfcollective._base.version import __version__

if TYPE_CHECKING:
    from tfcollective_launchers.yarn.api import run_on_yarn as run_on_yarn

    from tfcollective._base.errors import CollectiveAbortedError as CollectiveAbortedError
    from tfcollective._base.errors import CollectiveCancelledError as CollectiveCancelledError
    from tfcollective._base.errors import CollectiveError as CollectiveError
    from tfcollective._base.errors import CollectiveMismatchError as CollectiveMismatchError
    from tfcollective._base.errors import CollectiveTimeoutError as CollectiveTimeoutError
    from tfcollective._base.errors import ConfigError as ConfigError
    from tfcollective._base.errors import CoordinatorError as CoordinatorError
    from tfcollective._base.errors import DeviceError as DeviceError
    from tfcollective._base.errors import InternalError as InternalError
    from tfcollective._base.errors import InvalidArgumentError as InvalidArgumentError
    from tfcollective._base.errors import LaunchError as LaunchError
    from tfcollective._base.errors import PeerLostError as PeerLostError
    from tfcollective._base.errors import ProtocolError as ProtocolError
    from tfcollective._base.errors import RendezvousError as RendezvousError
    from tfcollective._base.errors import ResourceExhaustedError as ResourceExhaustedError
    from tfcollective._base.errors import StateError as StateError
    from tfcollective._base.errors import TfCollectiveError as TfCollectiveError
    from tfcollective._base.errors import TransportError as TransportError
    from tfcollective._base.errors import UnsupportedError as UnsupportedError
    from tfcollective._base.errors import WorkerFailedError as WorkerFailedError
    from tfcollective._base.task_specs import NodeLabel as NodeLabel
    from tfcollective._base.task_specs import TaskSpec as TaskSpec
    from tfcollective._base.task_specs import allreduce_topology as allreduce_topology
    from tfcollective._base.task_specs import single_server_topology as single_server_topology
    from tfcollective._cluster import cluster as cluster
    from tfcollective._launch.api import run as run
    from tfcollective._launch.running.function import get_safe_experiment_fn as get_safe_experiment_fn
    from tfcollective._runtime import ProcessSet as ProcessSet
    from tfcollective._runtime import add_process_set as add_process_set
    from tfcollective._runtime import cross_rank as cross_rank
    from tfcollective._runtime import cross_size as cross_size
    from tfcollective._runtime import get_communicator as get_communicator
    from tfcollective._runtime import global_process_set as global_process_set
    from tfcollective._runtime import init as init
    from tfcollective._runtime import is_homogeneous as is_homogeneous
    from tfcollective._runtime import is_initialized as is_initialized
    from tfcollective._runtime import local_rank as local_rank
    from tfcollective._runtime import local_size as local_size
    from tfcollective._runtime import process_set_ids_and_ranks as process_set_ids_and_ranks
    from tfcollective._runtime import publish as publish
    from tfcollective._runtime import rank as rank
    from tfcollective._runtime import remove_process_set as remove_process_set
    from tfcollective._runtime import shutdown as shutdown
    from tfcollective._runtime import size as size
    from tfcollective._runtime import start_timeline as start_timeline
    from tfcollective._runtime import stop_timeline as stop_timeline
    from tfcollective._runtime import task as task
    from tfcollective._runtime.communicator import Average as Average
    from tfcollective._runtime.communicator import Communicator as Communicator
    from tfcollective._runtime.communicator import Max as Max
    from tfcollective._runtime.communicator import Min as Min
    from tfcollective._runtime.communicator import Product as Product
    from tfcollective._runtime.communicator import Sum as Sum

#: Where each public name stands.
_HOMES = {
    name: home
    for home, names in {
        "tfcollective._cluster": "cluster",
        "tfcollective._runtime.communicator": "Average Communicator Max Min Product Sum",
        "tfcollective._base.errors": """
            CollectiveAbortedError CollectiveCancelledError CollectiveError CollectiveMismatchError
            CollectiveTimeoutError ConfigError CoordinatorError DeviceError InternalError InvalidArgumentError
            LaunchError PeerLostError ProtocolError RendezvousError ResourceExhaustedError StateError
            TfCollectiveError TransportError UnsupportedError WorkerFailedError
        """,
        "tfcollective._launch.api": "run",
        "tfcollective._launch.running.function": "get_safe_experiment_fn",
        "tfcollective._runtime": """
            ProcessSet add_process_set cross_rank cross_size get_communicator global_process_set init
            is_homogeneous is_initialized local_rank local_size process_set_ids_and_ranks publish rank
            remove_process_set shutdown size start_timeline stop_timeline task
        """,
        "tfcollective._base.task_specs": "NodeLabel TaskSpec allreduce_topology single_server_topology",
        "tfcollective_launchers.yarn.api": "run_on_yarn",
    }.items()
    for name in names.split()
}
_ELSEWHERE = "collectives are in tfcollective.tensorflow and tfcollective.keras, and for arrays in get_communicator()"
__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tfcollective' has no attribute {name!r}; {_ELSEWHERE}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # so that the next look-up costs nothing
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
