"""The names that the modules for TensorFlow and for Keras both have, with one meaning in both."""

from __future__ import annotations

from tfcollective._runtime import (
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
from tfcollective._runtime.communicator import Average, Max, Min, Op, Product, Sum
from tfcollective.tensorflow._adasum import Adasum
from tfcollective.tensorflow._compression import Compression, Compressor
from tfcollective.tensorflow._dataset import shard
from tfcollective.tensorflow._functions import barrier, grouped_allreduce
from tfcollective.tensorflow._objects import allgather_object, broadcast_object
from tfcollective.tensorflow._rows import alltoall, grouped_allgather
from tfcollective.tensorflow._variables import broadcast_variables

__all__: tuple[str, ...] = (
    "Adasum",
    "Average",
    "Compression",
    "Compressor",
    "Max",
    "Min",
    "Op",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather_object",
    "alltoall",
    "barrier",
    "broadcast_object",
    "broadcast_variables",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "process_set_ids_and_ranks",
    "rank",
    "remove_process_set",
    "shard",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
)
