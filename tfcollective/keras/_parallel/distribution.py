"""``keras.distribution`` on Keras's TensorFlow backend, which has data parallelism over the ranks of this job.

Keras's functions ask their backend; TensorFlow's has none of what they ask for. These are the answers.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective._base.settings import Settings, set_tf_config
from tfcollective.keras._parallel.files import replace_everywhere
from tfcollective.keras._parallel.randomness import share_random_states
from tfcollective.keras._parallel.rows import keep_seeds


def install(keras: Any, replace_method: Callable[..., bool]) -> None:
    """Gives Keras's backend what its distributions need; once a process.

    Args:
        keras: Keras 3, on TensorFlow.
        replace_method: see ``tfcollective.keras._copies``.
    """
    from keras.src.backend import distribution_lib as backend  # noqa: TID251  # install() is for Keras 3
    from keras.src.backend.common import global_state  # noqa: TID251

    backend.initialize = initialize
    backend.num_processes = num_processes
    backend.process_id = process_id
    backend.list_devices = list_devices
    backend.get_device_count = lambda device_type=None: len(list_devices(device_type))
    replace_method(keras.distribution.DataParallel, "__init__", _make)
    replace_method(keras.distribution.DataParallel, "distribute_dataset", _undivided)
    replace_method(keras.distribution.ModelParallel, "__init__", _refuse)
    replace_everywhere("clear_session", global_state.clear_session, _keeping(keras, global_state.clear_session))


def initialize(
    job_addresses: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Joins the other processes, and gives all of them the states of rank 0's random number generators.

    Under a launcher, or on a platform that ``tfcollective.init`` recognises, no argument is needed. Otherwise they are
    what TF_CONFIG would say, with its rules: see docs/howto/tf_config.md.

    Args:
        job_addresses: of all processes in order, "HOST:PORT,HOST:PORT"; they meet at the first.
        num_processes: how many.
        process_id: of this one, from 0.

    Raises:
        ConfigError: the arguments contradict each other or the launcher, or something is missing.
        RendezvousError: processes are missing when the start timeout ends.
    """
    if not runtime.is_initialized():
        if job_addresses is not None and Settings.load().coordinator is None:
            set_tf_config(_tf_config(job_addresses.split(","), process_id))
        runtime.init()
    if not runtime.task().is_trainer:  # an evaluator is outside the world, and works for itself
        return
    if num_processes not in (None, runtime.size()) or process_id not in (None, runtime.rank()):
        raise ConfigError(
            f"keras.distribution.initialize: this is process {runtime.rank()} of {runtime.size()}, not {process_id} of "
            f"{num_processes}"
        )
    share_random_states()
    keep_seeds()


def _tf_config(addresses: Sequence[str], process_id: int | None) -> str:
    if process_id is None:
        raise ConfigError("keras.distribution.initialize: process_id: say which of the job_addresses this process is")
    if not 0 <= process_id < len(addresses):
        raise ConfigError(
            f"keras.distribution.initialize: job_addresses: give those of all processes, as host0:2222,host1:2222; got "
            f"{len(addresses)} for process {process_id}"
        )
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": process_id}})


def num_processes() -> int:
    """The number of processes that train together."""
    return runtime.size() if runtime.is_initialized() else 1


def process_id() -> int:
    """The number of this process, from 0."""
    return runtime.rank() if runtime.is_initialized() else 0


def list_devices(device_type: str | None = None) -> list[str]:
    """One device for each process, as "cpu:0" or "gpu:0", in their order.

    Args:
        device_type: "cpu" or "gpu"; "gpu" if this process has one, if None.
    """
    kind = (device_type or ("gpu" if tf.config.list_logical_devices("GPU") else "cpu")).lower()
    count = len(tf.config.list_logical_devices(kind.upper()))
    return [f"{kind}:{place}" for place in range(count * num_processes())]


def _keeping(keras: Any, clear_session: Callable[..., None]) -> Callable[..., None]:
    """``clear_session``, which would forget the distribution, too: each rank would train a model of its own."""

    @functools.wraps(clear_session)
    def cleared(*args: Any, **kwargs: Any) -> None:
        distribution = keras.distribution.distribution()
        clear_session(*args, **kwargs)
        keras.distribution.set_distribution(distribution)

    return cleared


def _make(original: Callable[..., Any], distribution: Any, *args: Any, **kwargs: Any) -> None:
    mesh: Any = inspect.signature(original).bind(distribution, *args, **kwargs).arguments.get("device_mesh")
    if len(getattr(mesh, "shape", ())) > 1:
        raise UnsupportedError(
            f"{type(distribution).__name__}: a mesh of shape {tuple(mesh.shape)}: on TensorFlow a mesh has one axis, "
            "its processes"
        )
    original(distribution, *args, **kwargs)
    distribution._is_multi_process = False  # Keras would refuse data, or divide them in a way of its own


def _undivided(original: Callable[..., Any], distribution: Any, dataset: Any) -> Any:
    """Batches are divided where they are trained on."""
    del original, distribution
    return dataset


def _refuse(original: Callable[..., Any], distribution: Any, *args: Any, **kwargs: Any) -> None:
    del original, distribution, args, kwargs
    raise UnsupportedError(
        "ModelParallel: on TensorFlow each process holds the whole model and trains on its part of a batch: use "
        "keras.distribution.DataParallel"
    )
