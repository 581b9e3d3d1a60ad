"""IndexedSlices in which each row of the variable stands once."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["merged"]


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
