"""The collectives on tensors. They work eagerly, in ``tf.function``, loops and branches, and in v1 graphs.

All ranks must call the same operations with the same names, but may do so in different orders. With one rank nothing
is communicated. Errors are TensorFlow's: FailedPreconditionError (ranks disagree; the message shows every rank's
view), DeadlineExceededError, UnavailableError (a rank ended), AbortedError (a rank asked all to stop).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfcollective import runtime
from tfcollective.communicator import Average, Max, Min, Op, Product, Sum
from tfcollective.errors import InvalidArgumentError, UnsupportedError
from tfcollective.tensorflow import ops
from tfcollective.tensorflow.autograph import opaque
from tfcollective.tensorflow.compression import Compression
from tfcollective.tensorflow.names import operation_name

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "chosen_op",
    "grouped_allgather",
    "grouped_allreduce",
    "reducescatter",
    "refuse",
]


def chosen_op(average: bool | None, op: Op | None, default: Op = Average) -> Op:
    """The reduction that Horovod's pair of arguments asks for.

    Raises:
        InvalidArgumentError: both are given, or there is no such reduction.
    """
    if average is not None:
        if op is not None:
            raise InvalidArgumentError("give op or average, not both")
        return Average if average else Sum
    if op is None:
        return default
    if op not in (Average, Sum, Min, Max, Product):
        raise InvalidArgumentError(f"op: expected Average, Sum, Min, Max or Product, got {op!r}")
    return Op(op)


def refuse(**unsupported: object) -> None:
    """Raises UnsupportedError for the first argument that was given (is neither None, empty nor 1)."""
    for argument, value in unsupported.items():
        if value not in (None, "", 1):
            raise UnsupportedError(f"{argument}={value!r} is not supported yet")


@opaque
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: None = None,
) -> Any:
    """Combines the ranks' tensors element by element; all ranks get the same bits.

    Args:
        tensor: any shape, the same on all ranks. IndexedSlices are gathered instead (Sum and Average only).
        average: Horovod's old way to choose Average or Sum.
        device_dense: not supported.
        device_sparse: not supported.
        compression: how the tensor travels, of ``Compression``.
        op: Average (default), Sum, Min, Max or Product.
        prescale_factor: inputs are multiplied by this ...
        postscale_factor: ... and results by this.
        name: matches the operation between ranks; made from the place of the call if None.
        process_set: not supported.

    Returns:
        A tensor of the same shape and dtype, or IndexedSlices.

    The gradient is the same all-reduce of the gradient, for Average and Sum.
    """
    refuse(device_dense=device_dense, device_sparse=device_sparse, process_set=process_set)
    op = chosen_op(average, op)
    if isinstance(tensor, tf.IndexedSlices):
        return allreduce_slices(tensor, op, prescale_factor, postscale_factor, name)
    tensor = tf.convert_to_tensor(tensor)
    if runtime.size() == 1:
        return _scaled(tensor, prescale_factor * postscale_factor)
    wire, context = compression.compress(tensor)
    result = ops.allreduce(wire, op=op, prescale=prescale_factor, postscale=postscale_factor, name=operation_name(name))
    return compression.decompress(result, context)


def allreduce_slices(slices: Any, op: Op, prescale: float, postscale: float, name: str | None) -> Any:
    """Sum or average of IndexedSlices: all ranks' values and indices, one after the other."""
    if op not in (Average, Sum) or prescale != 1.0 or postscale != 1.0:
        raise UnsupportedError("IndexedSlices: only Sum and Average without scale factors; use sparse_as_dense=True")
    size = runtime.size()
    if size == 1:
        return slices
    name = operation_name(name)
    values = ops.allgather(slices.values, name=f"{name}/values")
    indices = ops.allgather(slices.indices, name=f"{name}/indices")
    if op == Average:
        values = values / tf.cast(size, values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


@opaque
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
    name: str | None = None,
) -> list[Any]:
    """Combines several tensors in one operation a dtype; see :func:`allreduce`.

    Args:
        tensors: tensors or IndexedSlices. An empty list is returned as it is.
        average: as in :func:`allreduce`, like the other arguments.
        device_dense: not supported.
        device_sparse: not supported.
        compression: how the tensors travel.
        op: Average (default), Sum, Min, Max or Product.
        prescale_factor: inputs are multiplied by this ...
        postscale_factor: ... and results by this.
        process_set: not supported.
        name: matches the operation between ranks.
    """
    refuse(device_dense=device_dense, device_sparse=device_sparse, process_set=process_set)
    op = chosen_op(average, op)
    results: list[Any] = list(tensors)
    name = operation_name(name) if results else ""
    dense: dict[str, list[int]] = {}
    contexts: dict[int, Any] = {}
    for index, tensor in enumerate(results):
        if isinstance(tensor, tf.IndexedSlices):
            results[index] = allreduce_slices(tensor, op, prescale_factor, postscale_factor, f"{name}/{index}")
            continue
        results[index], contexts[index] = compression.compress(tf.convert_to_tensor(tensor))
        dense.setdefault(results[index].dtype.name, []).append(index)
    for dtype, members in dense.items():
        part = [results[index] for index in members]
        reduced = _grouped(part, op, prescale_factor, postscale_factor, f"{name}/{dtype}")
        for index, result in zip(members, reduced, strict=True):
            results[index] = compression.decompress(result, contexts[index])
    return results


def _grouped(tensors: list[Any], op: Op, prescale: float, postscale: float, name: str) -> list[Any]:
    if runtime.size() == 1:
        return [_scaled(tensor, prescale * postscale) for tensor in tensors]
    return ops.grouped_allreduce(tensors, op=op, prescale=prescale, postscale=postscale, name=name)


@opaque
def allgather(tensor: Any, name: str | None = None, process_set: None = None) -> Any:
    """Puts the ranks' tensors one after the other, in rank order.

    Args:
        tensor: shape [n_r, ...]; n_r may differ from rank to rank, the rest may not. A scalar counts as one row.
        name: matches the operation between ranks.
        process_set: not supported.

    Returns:
        Shape [sum of all n_r, ...].

    The gradient is the sum of the ranks' gradients at this rank's rows (Horovod averages there).
    """
    refuse(process_set=process_set)
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        tensor = tf.reshape(tensor, [1])
    if runtime.size() == 1:
        return tf.identity(tensor)
    return ops.allgather(tensor, name=operation_name(name))


@opaque
def grouped_allgather(tensors: Sequence[Any], name: str | None = None, process_set: None = None) -> list[Any]:
    """Gathers several tensors; see :func:`allgather`."""
    name = operation_name(name)
    return [allgather(tensor, f"{name}/{index}", process_set) for index, tensor in enumerate(tensors)]


@opaque
def broadcast(tensor: Any, root_rank: int, name: str | None = None, process_set: None = None) -> Any:
    """Gives every rank the tensor of rank `root_rank`.

    Args:
        tensor: any shape, the same on all ranks.
        root_rank: whose values count.
        name: matches the operation between ranks.
        process_set: not supported.

    The gradient is the sum of the ranks' gradients on the root, and zero elsewhere.
    """
    refuse(process_set=process_set)
    size = runtime.size()
    if not 0 <= root_rank < size:
        raise InvalidArgumentError(f"root_rank: expected a rank below {size}, got {root_rank}")
    tensor = tf.convert_to_tensor(tensor)
    if size == 1:
        return tf.identity(tensor)
    return ops.broadcast(tensor, root=root_rank, name=operation_name(name))


@opaque
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Op = Average,
    name: str | None = None,
    process_set: None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Combines the ranks' tensors and gives each rank its rows of the result.

    Args:
        tensor: shape [n, ...], the same on all ranks, with at least one dimension.
        device_dense: not supported.
        compression: how the tensor travels.
        op: Average (default), Sum, Min, Max or Product.
        name: matches the operation between ranks.
        process_set: not supported.
        prescale_factor: inputs are multiplied by this ...
        postscale_factor: ... and results by this.

    Returns:
        Shape [n // size, ...], with one row more on the first n % size ranks.
    """
    refuse(device_dense=device_dense, process_set=process_set)
    op = chosen_op(None, op)
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        raise InvalidArgumentError("tensor: reducescatter needs at least one dimension")
    size, rank = runtime.size(), runtime.rank()
    if size == 1:
        return _scaled(tensor, prescale_factor * postscale_factor)
    wire, context = compression.compress(tensor)
    result = ops.reducescatter(
        wire, op=op, prescale=prescale_factor, postscale=postscale_factor, name=operation_name(name)
    )
    rows = tensor.shape[0] if tensor.shape.rank else None
    own_rows = None if rows is None else rows // size + (rank < rows % size)
    if tensor.shape.rank:
        result.set_shape(tf.TensorShape([own_rows]).concatenate(tensor.shape[1:]))
    return compression.decompress(result, context)


@opaque
def alltoall(tensor: Any, splits: Any = None, name: str | None = None, process_set: None = None) -> Any:
    """Sends rows to every rank and receives rows from every rank.

    Args:
        tensor: shape [n, ...]; the first ``splits[0]`` rows go to rank 0, and so on.
        splits: int[size] that sums to n; equal parts if None.
        name: matches the operation between ranks.
        process_set: not supported.

    Returns:
        The received rows in rank order; with `splits` also how many came from each rank (int32[size]).
    """
    refuse(process_set=process_set)
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        raise InvalidArgumentError("tensor: alltoall needs at least one dimension")
    size = runtime.size()
    given = splits is not None
    wanted = tf.cast(tf.convert_to_tensor(splits), tf.int64) if given else _equal_splits(tensor, size)
    if size == 1:
        return (tf.identity(tensor), tf.cast(wanted, tf.int32)) if given else tf.identity(tensor)
    result, received = ops.alltoall(tensor, wanted, name=operation_name(name))
    return (result, tf.cast(received, tf.int32)) if given else result


def _equal_splits(tensor: Any, size: int) -> Any:
    rows = tensor.shape[0] if tensor.shape.rank else None
    if rows is not None and rows % size:
        raise InvalidArgumentError(f"splits: needed, as {rows} rows cannot be divided by {size} ranks")
    count = tf.shape(tensor, out_type=tf.int64)[0] // size
    return tf.fill([size], count)


@opaque
def barrier(name: str | None = None, process_set: None = None) -> Any:
    """Ends when all ranks have come to it. In a graph the returned operation has to be run or depended on."""
    refuse(process_set=process_set)
    if runtime.size() == 1:
        return None if tf.executing_eagerly() else tf.no_op()
    return ops.barrier(name=operation_name(name))


def _scaled(tensor: Any, factor: float) -> Any:
    if factor == 1.0:
        return tf.identity(tensor)
    return tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype)
