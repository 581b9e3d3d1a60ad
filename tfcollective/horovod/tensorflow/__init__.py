"""Horovod's module of this name. Keras is imported when one of its names is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfcollective.horovod._capabilities import (
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
from tfcollective.horovod._common import (
    alltoall,
    barrier,
    grouped_allgather,
    grouped_allreduce,
    init,
    start_timeline,
)
from tfcollective.horovod.tensorflow import elastic
from tfcollective.horovod.tensorflow._collectives import (
    allgather,
    allreduce,
    broadcast,
    grouped_reducescatter,
    reducescatter,
)
from tfcollective.horovod.tensorflow._optimizer import (
    BroadcastGlobalVariablesHook,
    DistributedGradientTape,
    DistributedOptimizer,
    PartialDistributedGradientTape,
)
from tfcollective.horovod.tensorflow._util import (
    check_num_rank_power_of_2,
    gpu_available,
    handle_average_backwards_compatibility,
    num_rank_is_power_2,
)
from tfcollective.horovod.tensorflow.functions import (
    allgather_object,
    broadcast_,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from tfcollective.tensorflow import (
    Adasum,
    Average,
    Compression,
    Compressor,
    Max,
    Min,
    Op,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    broadcast_global_variables,
    cross_rank,
    cross_size,
    global_process_set,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    process_set_ids_and_ranks,
    process_set_included_op,
    rank,
    rank_op,
    remove_process_set,
    shard,
    shutdown,
    size,
    size_op,
    stop_timeline,
)

if TYPE_CHECKING:
    from tfcollective.keras import SyncBatchNormalization

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
    from tfcollective.keras import SyncBatchNormalization

    return SyncBatchNormalization
