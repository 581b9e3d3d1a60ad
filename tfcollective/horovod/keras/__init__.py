"""Horovod's module of this name, also as ``tfcollective.horovod.tensorflow.keras``."""

import tfcollective.keras as _keras
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
    allgather_object,
    alltoall,
    barrier,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
    grouped_allgather,
    grouped_allreduce,
    init,
    start_timeline,
)
from tfcollective.horovod._signatures import with_signature
from tfcollective.horovod.keras import callbacks, elastic
from tfcollective.horovod.keras.callbacks import (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)
from tfcollective.keras import (
    Adasum,
    Average,
    BackupAndRestore,
    Compression,
    Compressor,
    Elastic,
    GlobalMeanLoss,
    KerasExperiment,
    Max,
    Min,
    Op,
    ProcessSet,
    Product,
    Sum,
    SyncBatchNormalization,
    add_process_set,
    broadcast_global_variables,
    cross_rank,
    cross_size,
    global_process_set,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    process_set_ids_and_ranks,
    rank,
    remove_process_set,
    shard,
    shutdown,
    size,
    stop_timeline,
)

allreduce = with_signature(
    _keras.allreduce, "value name average prescale_factor postscale_factor op compression process_set"
)
allgather = with_signature(_keras.allgather, "value name process_set")
broadcast = with_signature(_keras.broadcast, "value root_rank name process_set")
reducescatter = with_signature(_keras.reducescatter, "value name op process_set")
_OPTIONS = "optimizer name device_dense device_sparse compression sparse_as_dense gradient_predivide_factor op"
DistributedOptimizer = with_signature(
    _keras.DistributedOptimizer,
    f"{_OPTIONS} backward_passes_per_step average_aggregated_gradients num_groups groups process_set"
    " scale_local_gradients",
)
PartialDistributedOptimizer = with_signature(
    _keras.DistributedOptimizer,
    f"{_OPTIONS} backward_passes_per_step average_aggregated_gradients groups process_set local_layers"
    " scale_local_gradients",
)
load_model = with_signature(_keras.load_model, "filepath custom_optimizers custom_objects compression legacy_opts")

__all__ = [
    "Adasum",
    "Average",
    "BackupAndRestore",
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "Elastic",
    "GlobalMeanLoss",
    "KerasExperiment",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "Max",
    "MetricAverageCallback",
    "Min",
    "Op",
    "PartialDistributedOptimizer",
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
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_ids_and_ranks",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shard",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
