"""Ranks that run out of data before the others."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcollective import runtime
from tfcollective.tensorflow import ops
from tfcollective.tensorflow.border import collective

__all__ = ["join"]


@collective
def join() -> Any:
    """This rank has no more data: the others train on without it, and it waits until all ranks have joined.

    Meanwhile it takes part with zeros in what the others all-reduce: allreduce, grouped_allreduce and gradients, with
    Average or Sum. Averages are of the ranks that still contribute. Whatever else the others call is refused there with
    FailedPreconditionError, sparse gradients (IndexedSlices) without ``sparse_as_dense=True`` included. A process set
    with a member that has joined waits for it.

    This rank's variables stay as they are. If all ranks shall go on, give them those of the rank that joined last:

    >>> last = hvd.join()
    >>> hvd.broadcast_variables(model.variables, root_rank=int(last))

    Returns:
        int32: the rank that joined last. In a graph the tensor has to be run, after everything else of this rank.

    Raises:
        DeadlineExceededError: for the operation timeout nothing was asked of this rank, and some rank has not joined.
        UnavailableError: a rank ended.
        AbortedError: a rank asked all to stop.
    """
    if runtime.members().size == 1:
        return tf.constant(0, tf.int32)
    return ops.join()
