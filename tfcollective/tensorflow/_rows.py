"""The collectives that deal in rows: results have a first dimension of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import InvalidArgumentError
from tfcollective._runtime import Members, ProcessSet
from tfcollective._runtime.communicator import Average, Op
from tfcollective.tensorflow import _ops as ops
from tfcollective.tensorflow._arguments import checked_op, scaled, with_rows
from tfcollective.tensorflow._border import collective
from tfcollective.tensorflow._compression import Compression
from tfcollective.tensorflow._helpers import size_in_graph
from tfcollective.tensorflow._names import operation_name
from tfcollective.tensorflow._reductions import note_reduction


@collective
def allgather(
    tensor: Any, *, name: str | None = None, process_set: ProcessSet | None = None, ignore_name_scope: bool = False
) -> Any:
    """Puts the ranks' tensors one after the other, in rank order.

    Args:
        tensor: shape [n_r, ...]; n_r may differ from rank to rank, the rest may not. A scalar counts as one row.

    Returns:
        Shape [sum of all n_r, ...].

    The gradient is the average of the ranks' gradients at this rank's rows, as in Horovod.
    """
    members = runtime.members(process_set)
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        tensor = tf.reshape(tensor, [1])
    if members.alone:
        return tf.identity(tensor)
    return ops.allgather(
        tensor,
        name=operation_name(name, members.process_set_id, ignore_name_scope),
        process_set_id=members.process_set_id,
    )


@collective
def grouped_allgather(
    tensors: Sequence[Any],
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """Gathers several tensors; see :func:`allgather`.

    Args:
        tensors: as in :func:`allgather`, each.
    """
    name = operation_name(name, runtime.members(process_set).process_set_id, ignore_name_scope)
    return [allgather(tensor, name=f"{name}/{index}", process_set=process_set) for index, tensor in enumerate(tensors)]


@collective
def reducescatter(
    tensor: Any,
    *,
    op: Op = Average,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    compression: Any = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
) -> Any:
    """Combines the ranks' tensors and gives each rank its rows of the result.

    Args:
        tensor: shape [n, ...], the same on all ranks, with at least one dimension.

    Returns:
        Shape [n // size, ...], with one row more on the first n % size ranks.

    The gradient is, as in Horovod, the ranks' gradients put one after the other, for Sum times the number of ranks.
    """
    note_reduction()
    op = checked_op(op)
    members = runtime.members(process_set)
    tensor = with_rows(tensor, "reducescatter")
    if members.alone:
        return scaled(tensor, prescale_factor * postscale_factor)
    wire, context = compression.compress(tensor)
    result = ops.reducescatter(
        wire,
        op=op,
        prescale=prescale_factor,
        postscale=postscale_factor,
        name=operation_name(name, members.process_set_id, ignore_name_scope),
        process_set_id=members.process_set_id,
    )
    rows = tensor.shape[0] if tensor.shape.rank else None
    own_rows = None if rows is None or members.elastic else rows // members.size + (members.rank < rows % members.size)
    if tensor.shape.rank:
        result.set_shape(tf.TensorShape([own_rows]).concatenate(tensor.shape[1:]))
    return compression.decompress(result, context)


@collective
def grouped_reducescatter(
    tensors: Sequence[Any],
    *,
    op: Op = Average,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    compression: Any = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Combines and scatters several tensors; see :func:`reducescatter`.

    Args:
        tensors: as in :func:`reducescatter`, each.
    """
    name = operation_name(name, runtime.members(process_set).process_set_id)
    return [
        reducescatter(
            tensor,
            op=op,
            name=f"{name}/{index}",
            process_set=process_set,
            compression=compression,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        for index, tensor in enumerate(tensors)
    ]


@collective
def alltoall(
    tensor: Any,
    *,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    ignore_name_scope: bool = False,
) -> Any:
    """Sends rows to every rank and receives rows from every rank.

    Args:
        tensor: shape [n, ...]; the first ``splits[0]`` rows go to rank 0, and so on.
        splits: int[size] that sums to n; equal parts if None.

    Returns:
        The received rows in rank order; with `splits` also how many came from each rank (int32[size]).

    The gradient sends every row's gradient back to where the row came from.
    """
    members = runtime.members(process_set)
    tensor = with_rows(tensor, "alltoall")
    given = splits is not None
    wanted = tf.cast(tf.convert_to_tensor(splits), tf.int64) if given else _equal_splits(tensor, members)
    if members.alone and given:
        tf.debugging.assert_equal(wanted, [tf.shape(tensor, tf.int64)[0]], "splits: one rank sends all rows to itself")
        return tf.identity(tensor), tf.cast(wanted, tf.int32)
    if members.alone:
        return tf.identity(tensor)
    name = operation_name(name, members.process_set_id, ignore_name_scope)
    result, received = ops.alltoall(tensor, wanted, name=name, process_set_id=members.process_set_id)
    return (result, tf.cast(received, tf.int32)) if given else result


def _equal_splits(tensor: Any, members: Members) -> Any:
    rows = tensor.shape[0] if tensor.shape.rank else None
    if rows is not None and not members.elastic and rows % members.size:
        raise InvalidArgumentError(f"splits: needed, as {rows} rows cannot be divided by {members.size} ranks")
    size = size_in_graph(members)
    count = tf.shape(tensor, out_type=tf.int64)[0] // tf.cast(size, tf.int64)
    return tf.fill([size], count)
