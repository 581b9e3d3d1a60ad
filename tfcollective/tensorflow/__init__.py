"""tfcollective for TensorFlow: collectives on tensors, a distributed gradient tape and optimizer, datasets.

Importing this does not initialise TensorFlow: threads, memory growth and visible devices can still be set. Options
are given by keyword. Horovod's signatures, and names that only it has, are in :mod:`tfcollective.horovod.tensorflow`.
"""

from __future__ import annotations

from tfcollective.tensorflow import (
    _registered_gradients,  # noqa: F401  # registers
    elastic,
)
from tfcollective.tensorflow._common import *  # noqa: F403
from tfcollective.tensorflow._common import __all__ as __all__  # type: ignore[attr-defined]
from tfcollective.tensorflow._functions import allreduce, broadcast, join
from tfcollective.tensorflow._helpers import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from tfcollective.tensorflow._optimizer import DistributedOptimizer
from tfcollective.tensorflow._rows import allgather, grouped_reducescatter, reducescatter
from tfcollective.tensorflow._tape import DistributedGradientTape
from tfcollective.tensorflow._variables import BroadcastGlobalVariablesHook, broadcast_global_variables

__all__ += (
    "BroadcastGlobalVariablesHook",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "elastic",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
)
