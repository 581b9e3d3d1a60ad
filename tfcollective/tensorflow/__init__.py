"""tfcollective for TensorFlow: collectives on tensors, a distributed gradient tape and optimizer, datasets.

Names and defaults are Horovod's, so that a script moves over by changing its import. Importing this does not
initialise TensorFlow: threads, memory growth and visible devices can still be set.
"""

from __future__ import annotations

from tfcollective.communicator import Average, Max, Min, Op, Product, Sum
from tfcollective.runtime import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from tfcollective.tensorflow import registered_gradients as _registered_gradients  # noqa: F401  # registers
from tfcollective.tensorflow.compression import Compression
from tfcollective.tensorflow.dataset import shard
from tfcollective.tensorflow.functions import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    reducescatter,
)
from tfcollective.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from tfcollective.tensorflow.optimizer import DistributedOptimizer
from tfcollective.tensorflow.tape import DistributedGradientTape
from tfcollective.tensorflow.variables import broadcast_variables

__all__ = [
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Op",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "cross_rank",
    "cross_size",
    "grouped_allgather",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "shard",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
