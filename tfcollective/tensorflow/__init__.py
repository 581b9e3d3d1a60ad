"""tfcollective for TensorFlow: collectives on tensors, a distributed gradient tape and optimizer, datasets.

Names and defaults are Horovod's, so that a script moves over by changing its import. Importing this does not
initialise TensorFlow: threads, memory growth and visible devices can still be set.
"""

from __future__ import annotations

from typing import Any

from tfcollective.communicator import Average, Max, Min, Op, Product, Sum
from tfcollective.runtime import (
    ProcessSet,
    add_process_set,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    process_set_ids_and_ranks,
    rank,
    remove_process_set,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from tfcollective.runtime.capabilities import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from tfcollective.tensorflow import elastic
from tfcollective.tensorflow import registered_gradients as _registered_gradients  # noqa: F401  # registers
from tfcollective.tensorflow.adasum import Adasum
from tfcollective.tensorflow.compression import Compression, Compressor
from tfcollective.tensorflow.dataset import shard
from tfcollective.tensorflow.functions import allreduce, barrier, broadcast, grouped_allreduce, join
from tfcollective.tensorflow.graph_values import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from tfcollective.tensorflow.helpers import (
    check_num_rank_power_of_2,
    gpu_available,
    handle_average_backwards_compatibility,
    num_rank_is_power_2,
)
from tfcollective.tensorflow.hooks import BroadcastGlobalVariablesHook
from tfcollective.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from tfcollective.tensorflow.optimizer import DistributedOptimizer
from tfcollective.tensorflow.rows import allgather, alltoall, grouped_allgather, grouped_reducescatter, reducescatter
from tfcollective.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from tfcollective.tensorflow.variables import broadcast_, broadcast_global_variables, broadcast_variables

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "Compressor",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Op",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "num_rank_is_power_2",
    "process_set_ids_and_ranks",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shard",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]


def __getattr__(name: str) -> Any:
    if name != "SyncBatchNormalization":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tfcollective.keras.normalization import SyncBatchNormalization  # of the room above: see docs/adr/0006

    return SyncBatchNormalization
