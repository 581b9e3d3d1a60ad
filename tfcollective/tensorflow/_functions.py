"""The collectives on tensors. They work eagerly, in ``tf.function``, loops and branches, and in v1 graphs.

All members of a process set (all ranks if none is given) must call the same operations with the same names. Operations
of several threads, or of one v1 graph, may come in different orders; those of one ``tf.function`` and eager ones run
one after the other, so their order has to be the same. With one member nothing is communicated. Errors are
TensorFlow's: FailedPreconditionError (ranks disagree; the message shows every rank's view), DeadlineExceededError,
AbortedError (a rank ended, or asked all to stop).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import UnsupportedError
from tfcollective._runtime import Members, ProcessSet
from tfcollective._runtime.communicator import Average, Op, Sum
from tfcollective.tensorflow import _ops as ops
from tfcollective.tensorflow._adasum import Adasum, adasum
from tfcollective.tensorflow._arguments import checked_op, scaled
from tfcollective.tensorflow._border import collective
from tfcollective.tensorflow._compression import Compression
from tfcollective.tensorflow._helpers import size_in_graph
from tfcollective.tensorflow._names import operation_name
from tfcollective.tensorflow._reductions import note_reduction


@collective
def allreduce(
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
    """Combines the ranks' tensors element by element; all ranks get the same bits.

    Args:
        tensor: any shape, the same on all ranks. Rows of IndexedSlices are gathered, and equal
            ones added (Sum and Average only).
        op: Average (default), Sum, Min, Max, Product or Adasum.

    Returns:
        A tensor of the same shape and dtype, or IndexedSlices.

    The gradient is the same all-reduce of the gradient, for Average, Sum and Adasum.
    """
    note_reduction()
    members = runtime.members(process_set)
    if op == Adasum:
        name = operation_name(name, members.process_set_id, ignore_name_scope)
        return _adasum(tensor, compression, prescale_factor, postscale_factor, name, members)
    op = checked_op(op)
    if isinstance(tensor, tf.IndexedSlices):
        name = operation_name(name, members.process_set_id, ignore_name_scope)
        return allreduce_slices(tensor, op, prescale_factor, postscale_factor, name, members)
    tensor = tf.convert_to_tensor(tensor)
    if members.alone:
        return scaled(tensor, prescale_factor * postscale_factor)
    wire, context = compression.compress(tensor)
    result = ops.allreduce(
        wire,
        op=op,
        prescale=prescale_factor,
        postscale=postscale_factor,
        name=operation_name(name, members.process_set_id, ignore_name_scope),
        process_set_id=members.process_set_id,
    )
    return compression.decompress(result, context)


def _adasum(tensor: Any, compression: Any, prescale: float, postscale: float, name: str, members: Members) -> Any:
    if isinstance(tensor, tf.IndexedSlices):
        raise UnsupportedError("IndexedSlices: only Sum and Average; use sparse_as_dense=True")
    wire, context = compression.compress(scaled(tf.convert_to_tensor(tensor), prescale))
    return compression.decompress(scaled(adasum(wire, name, members), postscale), context)


def allreduce_slices(slices: Any, op: Op, prescale: float, postscale: float, name: str, members: Members) -> Any:
    """Sum or average of IndexedSlices: all members' rows, each once; see :func:`merged`."""
    if op not in (Average, Sum) or prescale != 1.0 or postscale != 1.0:
        raise UnsupportedError("IndexedSlices: only Sum and Average without scale factors; use sparse_as_dense=True")
    return merged(gathered_slices(slices, op, name, members))


def gathered_slices(
    slices: Any, op: Op, name: str, members: Members, label: str = "", compression: Any = Compression.none
) -> Any:
    """All members' rows of IndexedSlices, whose sums are the sum or average; equal rows stay apart, in ranks' order."""
    if members.alone:
        return slices
    wire, context = compression.compress(slices.values)
    gathered = ops.allgather(wire, name=f"{name}/values", label=label, process_set_id=members.process_set_id)
    indices = ops.allgather(slices.indices, name=f"{name}/indices", label=label, process_set_id=members.process_set_id)
    values = compression.decompress(gathered, context)
    if op == Average:
        values = values / tf.cast(size_in_graph(members), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


@collective
def grouped_allreduce(
    tensors: Sequence[Any],
    *,
    op: Op = Average,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    compression: Any = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """Combines several tensors in one operation a dtype; see :func:`allreduce`.

    Args:
        tensors: tensors or IndexedSlices. An empty list is returned as it is.
        op: Average (default), Sum, Min, Max, Product or Adasum (of each tensor on its own).
    """
    note_reduction()
    members = runtime.members(process_set)
    results: list[Any] = list(tensors)
    name = operation_name(name, members.process_set_id, ignore_name_scope) if results else ""
    if op == Adasum:
        return [
            _adasum(tensor, compression, prescale_factor, postscale_factor, f"{name}/{index}", members)
            for index, tensor in enumerate(results)
        ]
    op = checked_op(op)
    dense: dict[str, list[int]] = {}
    contexts: dict[int, Any] = {}
    for index, tensor in enumerate(results):
        if isinstance(tensor, tf.IndexedSlices):
            slices = f"{name}/{index}"
            results[index] = allreduce_slices(tensor, op, prescale_factor, postscale_factor, slices, members)
            continue
        results[index], contexts[index] = compression.compress(tf.convert_to_tensor(tensor))
        dense.setdefault(results[index].dtype.name, []).append(index)
    for dtype, places in dense.items():
        part = [results[index] for index in places]
        reduced = _grouped(part, op, prescale_factor, postscale_factor, f"{name}/{dtype}", members)
        for index, result in zip(places, reduced, strict=True):
            results[index] = compression.decompress(result, contexts[index])
    return results


def _grouped(tensors: list[Any], op: Op, prescale: float, postscale: float, name: str, members: Members) -> list[Any]:
    if members.alone:
        return [scaled(tensor, prescale * postscale) for tensor in tensors]
    return ops.grouped_allreduce(
        tensors, op=op, prescale=prescale, postscale=postscale, name=name, process_set_id=members.process_set_id
    )


@collective
def broadcast(
    tensor: Any,
    *,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    ignore_name_scope: bool = False,
) -> Any:
    """Gives every rank the tensor of rank `root_rank`.

    Args:
        tensor: any shape, the same on all ranks.

    The gradient is the average of the ranks' gradients on the root, and zero elsewhere, as in Horovod.
    """
    members = runtime.members(process_set)
    root = members.place_of(root_rank, "root_rank")
    tensor = tf.convert_to_tensor(tensor)
    if members.alone:
        return tf.identity(tensor)
    name = operation_name(name, members.process_set_id, ignore_name_scope)
    return ops.broadcast(tensor, root=root, name=name, process_set_id=members.process_set_id)


@collective
def barrier(*, name: str | None = None, process_set: ProcessSet | None = None) -> Any:
    """Ends when all ranks have come to it. In a graph the returned operation has to be run or depended on.

    Args:
        name: matches the operation between ranks; made from the place of the call if None.
    """
    members = runtime.members(process_set)
    if members.alone:
        return None if tf.executing_eagerly() else tf.no_op()
    return ops.barrier(name=operation_name(name, members.process_set_id), process_set_id=members.process_set_id)


def merged(slices: Any) -> Any:
    """The same gradient with each row once, in ascending order; equal rows are added in the order in which they stand.

    Optimizers scatter rows into a variable with several threads: equal rows would be added in an order that differs
    from rank to rank, and replicas would drift apart. One thread adds here, so ranks with the same slices get the same
    bits, whatever their numbers of threads.

    Args:
        slices: IndexedSlices. Those of types that are not real numbers are returned as they are.
    """
    values = tf.convert_to_tensor(slices.values)
    if not (values.dtype.is_floating or values.dtype.is_integer):
        return slices
    with tf.device("CPU:0"):  # gathered rows are in the host's memory, and a GPU adds in no fixed order
        order = tf.argsort(slices.indices, stable=True)
        rows = tf.gather(slices.indices, order)
        first = tf.concat([tf.ones_like(rows[:1], tf.bool), tf.not_equal(rows[1:], rows[:-1])], 0)
        segments = tf.cumsum(tf.cast(first, tf.int32)) - 1
        sums = tf.sparse.segment_sum(values, order, segments)
        return tf.IndexedSlices(sums, tf.boolean_mask(rows, first), slices.dense_shape)


def as_of_one_batch(slices: Any, parts: int) -> Any:
    """The gradient that the whole batch has, as far as its rows are apart, of those of the parts of a batch.

    A lookup by the batch, as of tokens, has its rows in some part. One that does not depend on the batch, as of the
    places in a sequence, has the same rows in each part: they are added, part by part. It is told from the other by its
    indices: each once in a part, and the same in all parts.

    Args:
        slices: IndexedSlices, the parts' one after the other.
        parts: how many.
    """
    with tf.device("CPU:0"):
        values, indices = tf.convert_to_tensor(slices.values), slices.indices
        count = tf.shape(indices)[0] // parts
        first, whole = tf.sort(indices[:count]), count * parts
        same = tf.reduce_all(tf.reshape(indices[:whole], [parts, count]) == indices[:count])
        once = tf.reduce_all(first[1:] != first[:-1])

        def added() -> tuple[Any, Any]:
            shape = tf.concat([[parts, count], tf.shape(values)[1:]], 0)
            return tf.reduce_sum(tf.reshape(values[:whole], shape), 0), indices[:count]

        values, indices = tf.cond(
            same & once & (whole == tf.shape(indices)[0]), added, lambda: (tf.identity(values), tf.identity(indices))
        )
        return tf.IndexedSlices(values, indices, slices.dense_shape)


@collective
def join() -> Any:
    """Tells the others that this rank has no more data: they train without it, and it waits until all have joined.

    Meanwhile it takes part with zeros in what the others all-reduce: allreduce, grouped_allreduce and gradients, with
    Average or Sum. Averages are of the ranks that still contribute. Whatever else the others call is refused there with
    FailedPreconditionError, sparse gradients (IndexedSlices) without ``sparse_as_dense=True`` included. A process set
    with a member that has joined waits for it.

    This rank's variables stay as they are. To continue with all ranks, give them those of the rank that joined last:

    >>> last = tfc.join()
    >>> tfc.broadcast_variables(model.variables, root_rank=int(last))

    Returns:
        int32: the rank that joined last. In a graph the tensor has to be run, after everything else of this rank.

    Raises:
        DeadlineExceededError: for the operation timeout nothing was asked of this rank, and some rank has not joined.
        AbortedError: a rank ended, or asked all to stop.
    """
    if runtime.members().alone:
        return tf.constant(0, tf.int32)
    return ops.join()
