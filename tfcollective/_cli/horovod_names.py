"""Horovod's names, and how ours compare: the tables of ``docs/from-horovod.md``, which a test compares with these."""

from __future__ import annotations

_SAME = ("same", "")
_KERAS_STATE = (
    "different",
    "also of several models and optimizers; of what reset callbacks assign to variables, learning rates count",
)
_INTERRUPT = ("different", "`skip_sync` has no effect: ranks sync after every change")


def _same(names: str) -> dict[str, tuple[str, str]]:
    return dict.fromkeys(names.split(), _SAME)


#: By module: name, ("same", "different" or "not yet", what differs).
TABLES: dict[str, dict[str, tuple[str, str]]] = {
    "tensorflow": {
        "init": (
            "different",
            '`comm` is refused; `process_sets` is a list of `ProcessSet`, or "dynamic", which is not needed',
        ),
        **_same("shutdown is_initialized rank size local_rank local_size cross_rank cross_size is_homogeneous"),
        "mpi_threads_supported": ("same", "False"),
        "mpi_enabled": ("same", "True with the engine mpi"),
        "mpi_built": ("same", "True with the engine mpi"),
        "gloo_enabled": ("same", "True with the engine horovod; otherwise False, as ranks do not use Gloo"),
        "gloo_built": ("same", "True with the engine horovod"),
        "nccl_built": ("same", "0"),
        "ddl_built": ("same", "False"),
        "ccl_built": ("same", "False"),
        "cuda_built": ("same", "False"),
        "rocm_built": ("same", "False"),
        "start_timeline": ("same", "at any time; `mark_cycles` has no effect, as there are no cycles"),
        "stop_timeline": _SAME,
        "ProcessSet": ("different", "takes ranks, no communicator of MPI; `mpi_comm` is None"),
        "global_process_set": _SAME,
        "add_process_set": ("different", "works at any time; ranks that disagree all get an error"),
        "remove_process_set": ("different", "works at any time; a set's number is never used again"),
        "process_set_ids_and_ranks": _SAME,
        "PROCESS_SET_ERROR_INIT": (
            "not yet",
            "does not exist, like the other numbers of errors: what goes wrong is an exception",
        ),
        "Average": ("same", "of integers: of the exact sum, rounded toward zero; in Horovod the sum wraps first"),
        **_same("Sum Min Max Product"),
        "Adasum": (
            "different",
            "of any process set; a power of two of ranks. For `allreduce`, `grouped_allreduce` and the tape",
        ),
        "Compression": ("same", "has `bf16`, too"),
        "Compressor": ("same", "in Horovod at `horovod.tensorflow.compression`"),
        "allreduce": ("same", "more types: bfloat16, int16, uint16, uint32, uint64"),
        "grouped_allreduce": ("different", "tensors may have several types: one operation a type"),
        "allgather": _SAME,
        "grouped_allgather": ("different", "one operation a tensor, not one for all"),
        **_same("broadcast broadcast_ alltoall"),
        "reducescatter": ("same", "also Min, Max and Product"),
        "grouped_reducescatter": ("different", "one operation a tensor, not one for all"),
        "join": ("different", "averages are of the ranks that still contribute; Min, Max and Product are refused"),
        **_same("size_op rank_op local_rank_op local_size_op process_set_included_op"),
        **dict.fromkeys(
            ("broadcast_object", "broadcast_object_fn", "allgather_object"), ("different", "`session` is not needed")
        ),
        "broadcast_variables": _SAME,
        "broadcast_global_variables": _SAME,
        "BroadcastGlobalVariablesHook": ("same", "there with every TensorFlow"),
        "gpu_available": ("different", "says whether TensorFlow has a GPU"),
        **_same("check_num_rank_power_of_2 num_rank_is_power_2 handle_average_backwards_compatibility"),
        "DistributedOptimizer": (
            "different",
            (
                "`op` is Average or Sum: Adasum of what an optimizer of `tf.compat.v1` changes is not there, as the "
                "tape has `op=Adasum` with every optimizer; `op` and `groups` count for Keras optimizers, too; "
                "sparse gradients may be added up over passes"
            ),
        ),
        "DistributedGradientTape": (
            "different",
            "`op` is Average, Sum or Adasum (without `compression`); finds replicas that have drifted apart",
        ),
        "PartialDistributedGradientTape": ("same", "layers may be built later"),
        "SyncBatchNormalization": ("different", "Keras 3 and Keras 2; batches of different size count by their rows"),
        "elastic": ("same", "see [how an elastic job goes on](howto/elastic.md)"),
    },
    "elastic": {
        "run": (
            "different",
            (
                "ranks take the newest commit that one of them has, not rank 0's; an error of the program ends the job "
                "without `--horovod-compat` or `--on-error replace`"
            ),
        ),
        "State": (
            "different",
            "in Horovod at `horovod.common.elastic`; a subclass has a `take`, or a `sync` of its own as in Horovod",
        ),
        "ObjectState": ("different", "copies values when they are saved, also those that are changed in place"),
        "TensorFlowState": ("different", "`session` is refused; with TensorFlow 2 variables are synced, too"),
        "TensorFlowKerasState": _KERAS_STATE,
        "HorovodInternalError": ("same", "in Horovod at `horovod.common.exceptions`"),
        "HostsUpdatedInterrupt": _INTERRUPT,
    },
    "keras": {
        **dict.fromkeys(
            ("allreduce", "allgather", "broadcast", "reducescatter"),
            ("different", "gives a tensor, also in a graph of `tf.compat.v1`"),
        ),
        "broadcast_global_variables": ("different", "gives the operation to run"),
        "DistributedOptimizer": (
            "different",
            (
                "`op` is Average or Sum; `backward_passes_per_step` becomes Keras 3's `gradient_accumulation_steps`: "
                "there `optimizer.iterations` counts updates, with Keras 2 passes, as in Horovod"
            ),
        ),
        "PartialDistributedOptimizer": ("same", "layers may be built later"),
        "load_model": ("different", "wraps the optimizer that the model has; more arguments go to Keras"),
        "callbacks": _SAME,
        "elastic": ("same", "see [how an elastic job goes on](howto/elastic.md)"),
    },
    "callbacks": {
        "BroadcastGlobalVariablesCallback": (
            "different",
            "broadcasts before the first batch, too, if the model is built",
        ),
        "MetricAverageCallback": _SAME,
        "LearningRateScheduleCallback": (
            "different",
            "momentum correction scales the velocity once, which also works where momentum is a constant",
        ),
        "LearningRateWarmupCallback": ("different", "momentum correction scales the velocity once"),
        "BestModelCheckpoint": ("different", "rank 0 writes; `filepath` may be given when it is made"),
    },
    "keras_elastic": {
        "run": ("different", "as in `tfcollective.horovod.tensorflow.elastic`"),
        "State": ("different", "as in `tfcollective.horovod.tensorflow.elastic`"),
        "KerasState": _KERAS_STATE,
        **_same("CommitStateCallback UpdateBatchStateCallback UpdateEpochStateCallback"),
        "HorovodInternalError": ("same", "in Horovod at `horovod.common.exceptions`"),
        "HostsUpdatedInterrupt": _INTERRUPT,
    },
}
