"""tfcollective for Keras 3 and Keras 2: distributed optimizer and callbacks, and the collectives.

Names and defaults are Horovod's, so that a script moves over by changing its import.
"""

from __future__ import annotations

from tfcollective.keras.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback
from tfcollective.keras.model_io import load_model
from tfcollective.keras.optimizer import DistributedOptimizer
from tfcollective.tensorflow import (
    Average,
    Compression,
    Max,
    Min,
    Op,
    Product,
    Sum,
    allgather,
    allgather_object,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_object,
    broadcast_variables,
    cross_rank,
    cross_size,
    grouped_allreduce,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    reducescatter,
    shard,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)

__all__ = [
    "Average",
    "BroadcastGlobalVariablesCallback",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "MetricAverageCallback",
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
    "broadcast_variables",
    "callbacks",
    "cross_rank",
    "cross_size",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "load_model",
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
