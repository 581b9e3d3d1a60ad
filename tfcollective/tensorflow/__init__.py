"""tfcollective for TensorFlow: collectives on tensors, a distributed gradient tape and optimizer, datasets.

Names and defaults are Horovod's, so that a script moves over by changing its import. Importing this does not
initialise TensorFlow: threads, memory growth and visible devices can still be set.
"""

from __future__ import annotations

from typing import Any

from tfcollective.tensorflow import elastic
from tfcollective.tensorflow import registered_gradients as _registered_gradients  # noqa: F401  # registers
from tfcollective.tensorflow.common import *  # noqa: F403
from tfcollective.tensorflow.common import __all__ as __all__  # type: ignore[attr-defined]
from tfcollective.tensorflow.functions import allreduce, broadcast, join
from tfcollective.tensorflow.helpers import (
    check_num_rank_power_of_2,
    gpu_available,
    handle_average_backwards_compatibility,
    local_rank_op,
    local_size_op,
    num_rank_is_power_2,
    process_set_included_op,
    rank_op,
    size_op,
)
from tfcollective.tensorflow.optimizer import DistributedOptimizer
from tfcollective.tensorflow.rows import allgather, grouped_reducescatter, reducescatter
from tfcollective.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from tfcollective.tensorflow.variables import BroadcastGlobalVariablesHook, broadcast_, broadcast_global_variables

__all__ += (
    "BroadcastGlobalVariablesHook",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",  # noqa: F405  # see __getattr__
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "check_num_rank_power_of_2",
    "elastic",
    "gpu_available",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "num_rank_is_power_2",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
)


def __getattr__(name: str) -> Any:
    if name != "SyncBatchNormalization":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tfcollective.keras.normalization import SyncBatchNormalization  # of the room above: see docs/adr/0006

    return SyncBatchNormalization
