"""Adasum: a sum that shrinks what the ranks' tensors have in common (Maleki et al. 2020, arXiv:2006.02924).

Of two vectors it is ``(1 - ab / 2aa) a + (1 - ab / 2bb) b``: their sum if they are orthogonal, their average if they
are equal. Of more it is a binary tree: neighbours first, then neighbours of the results. Each rank holds one part of
all ranks' vectors (an all-to-all), so that a level of the tree costs one small all-reduce of dot products, and the
results are put together by an all-gather: as many bytes as an all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective._runtime import Members
from tfcollective._runtime.communicator import Sum
from tfcollective.tensorflow import _ops as ops

#: The reduction's number, as in Horovod. ``allreduce``, ``grouped_allreduce`` and the tape take it.
Adasum = 2


def adasum(tensor: Any, name: str, members: Members) -> Any:
    """The Adasum of the members' tensors.

    Args:
        tensor: floating point, any shape, the same on all ranks. 16-bit types are combined in float32.
        name: matches the operations between ranks.
        members: their number is a power of two.

    The gradient is the Adasum of the gradients, as in Horovod.

    Raises:
        UnsupportedError: the number of members is no power of two, or may change while the job runs.
        InvalidArgumentError: the tensor is not of a floating-point type.
    """
    if members.elastic:
        raise UnsupportedError(
            "op: Adasum needs a power of two of ranks, which an elastic job need not keep: use Average"
        )
    if members.size & (members.size - 1):
        raise UnsupportedError(f"Adasum: expected a power of two as the number of ranks, got {members.size}")
    if not tensor.dtype.is_floating:
        raise InvalidArgumentError(f"op: Adasum: expected a floating-point tensor, got {tensor.dtype.name}")
    if members.size == 1:
        return tf.identity(tensor)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduced(value: Any) -> Any:
        return _reduce(value, name, members), lambda gradient: adasum(gradient, f"{name}/gradient", members)

    return reduced(tensor)


def combine(vectors: Any, total: Callable[[Any, int], Any]) -> Any:
    """The Adasum of the rows of `vectors`.

    Args:
        vectors: [count, length], a part of the whole vectors; count is a power of two.
        total: takes partial dot products (float64[3, pairs]) and the number of the level, gives the whole ones.

    Returns:
        [length].
    """
    level = 0
    while vectors.shape[0] > 1:
        a, b = vectors[0::2], vectors[1::2]
        partial = tf.stack([_dots(a, b), _dots(a, a), _dots(b, b)])
        ab, aa, bb = tf.unstack(total(partial, level))
        vectors = _share(ab, aa, a) * a + _share(ab, bb, b) * b
        level += 1
    return vectors[0]


def _dots(a: Any, b: Any) -> Any:
    return tf.reduce_sum(tf.cast(a, tf.float64) * tf.cast(b, tf.float64), axis=1)


def _share(ab: Any, own: Any, like: Any) -> Any:
    """[pairs, 1]: how much of a vector with this square goes into the result; all of it if it is zero."""
    return tf.cast(1.0 - tf.math.divide_no_nan(ab, 2.0 * own), like.dtype)[:, tf.newaxis]


def _reduce(tensor: Any, name: str, members: Members) -> Any:
    work = tf.cast(tensor, tf.float32) if tensor.dtype.size < tf.float32.size else tensor
    flat = tf.reshape(work, [-1])
    count = tf.size(flat, out_type=tf.int64)
    places = tf.range(members.size, dtype=tf.int64)
    parts = count // members.size + tf.cast(places < count % members.size, tf.int64)
    received, _ = ops.alltoall(flat, parts, name=f"{name}/parts", process_set_id=members.process_set_id)

    def total(partial: Any, level: int) -> Any:
        return ops.allreduce(partial, op=Sum, name=f"{name}/dots_{level}", process_set_id=members.process_set_id)

    own = combine(tf.reshape(received, [members.size, parts[members.rank]]), total)
    whole = ops.allgather(own, name=f"{name}/whole", process_set_id=members.process_set_id)
    return tf.cast(tf.reshape(whole, tf.shape(tensor)), tensor.dtype)
