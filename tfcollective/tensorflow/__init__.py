"""tfcollective for TensorFlow: collectives on tensors, a distributed gradient tape and optimizer, datasets.

Names and defaults are Horovod's, so that a script moves over by changing its import. Importing this does not
initialise TensorFlow: threads, memory growth and visible devices can still be set.
"""

from __future__ import annotations

from typing import Any

from tfcollective.tensorflow import (
    _registered_gradients,  # noqa: F401  # registers
    elastic,
)
from tfcollective.tensorflow._common import *  # noqa: F403
from tfcollective.tensorflow._common import __all__ as __all__  # type: ignore[attr-defined]
from tfcollective.tensorflow._functions import allreduce, broadcast, join
from tfcollective.tensorflow._helpers import (
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
from tfcollective.tensorflow._optimizer import DistributedOptimizer
from tfcollective.tensorflow._rows import allgather, grouped_reducescatter, reducescatter
from tfcollective.tensorflow._tape import DistributedGradientTape, PartialDistributedGradientTape
from tfcollective.tensorflow._variables import BroadcastGlobalVariablesHook, broadcast_, broadcast_global_variables

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
    from tfcollective.keras._normalization import SyncBatchNormalization  # of the room above: see docs/adr/0006

    return SyncBatchNormalization
