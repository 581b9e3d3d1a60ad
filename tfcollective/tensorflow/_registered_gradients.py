"""Gradients of the ops. Registered when this module is imported; loads no library.

They mean what Horovod's mean. For all-reduce and all-to-all that is the gradient of the sum of all ranks' losses. Of
all-gather and broadcast it is that divided by the number of ranks, of reduce-scatter that times it: a reduce-scatter
followed by an all-gather has the gradient of the all-reduce that they make up.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import UnsupportedError
from tfcollective._runtime import Members
from tfcollective._runtime.communicator import Average, Op, Sum
from tfcollective.tensorflow import _ops as ops
from tfcollective.tensorflow import _xla as xla
from tfcollective.tensorflow._external_ops import GRADIENTS
from tfcollective.tensorflow._helpers import rank_in_graph, size_in_graph


def _linear(op: Any) -> dict[str, Any]:
    """The op's reduction, if it has a gradient: Average and Sum do."""
    reduction = Op(op.get_attr("op"))
    if reduction not in (Average, Sum):
        raise UnsupportedError(f"{reduction.name.capitalize()} has no gradient; only Average and Sum have")
    return {"op": reduction, "prescale": _factor(op, "prescale"), "postscale": _factor(op, "postscale")}


def _where(op: Any) -> dict[str, Any]:
    """The name of the gradient's operation, and the op's process set."""
    name, _, _label = tf.compat.as_text(op.get_attr("tensor_name")).partition("\t")
    return {"name": f"{name}/gradient", "process_set_id": op.get_attr("process_set_id")}


def _factor(op: Any, name: str) -> float:
    return float(tf.compat.as_text(op.get_attr(name)))


def _members(op: Any) -> Members:
    return runtime.members_of_set(op.get_attr("process_set_id"))


def _average(op: Any, grad: Any) -> Any:
    """The average of the ranks' gradients."""
    return ops.allreduce(tf.convert_to_tensor(grad), op=Average, **_where(op))


@tf.RegisterGradient("TfcollectiveAllreduce")  # type: ignore[untyped-decorator]
def _allreduce(op: Any, grad: Any) -> Any:
    return ops.allreduce(tf.convert_to_tensor(grad), **_linear(op), **_where(op))


@tf.RegisterGradient("TfcollectiveGroupedAllreduce")  # type: ignore[untyped-decorator]
def _grouped_allreduce(op: Any, *grads: Any) -> Any:
    return ops.grouped_allreduce([tf.convert_to_tensor(grad) for grad in grads], **_linear(op), **_where(op))


@tf.RegisterGradient("TfcollectiveAllgather")  # type: ignore[untyped-decorator]
def _allgather(op: Any, grad: Any) -> Any:
    where, like = _where(op), op.inputs[0]
    total = _average(op, grad)
    if xla.is_compiled():  # all ranks have equally many rows
        begin = _members(op).rank * like.shape[0]
        return total[begin : begin + like.shape[0]]
    count = tf.shape(like, out_type=tf.int64)[0]
    counts = ops.allgather(tf.reshape(count, [1]), **{**where, "name": f"{where['name']}/rows"})
    begin = tf.reduce_sum(counts[: rank_in_graph(_members(op))])
    rows = total[begin : begin + count]
    rows.set_shape(like.shape)
    return rows


@tf.RegisterGradient("TfcollectiveBroadcast")  # type: ignore[untyped-decorator]
def _broadcast(op: Any, grad: Any) -> Any:
    average, members = _average(op, grad), _members(op)
    if members.elastic:
        is_root = tf.equal(rank_in_graph(members), op.get_attr("root_rank"))
        return tf.where(is_root, average, tf.zeros_like(average))
    if members.rank == op.get_attr("root_rank"):
        return average
    # Zeros that hang together with the average: a gradient of this gradient reduces on every rank, or on none.
    return tf.where(tf.zeros_like(average, tf.bool), average, tf.zeros_like(average))


@tf.RegisterGradient("TfcollectiveReducescatter")  # type: ignore[untyped-decorator]
def _reducescatter(op: Any, grad: Any) -> Any:
    how = _linear(op)
    grad = tf.convert_to_tensor(grad)
    size = tf.cast(size_in_graph(_members(op)) if how["op"] == Sum else 1, grad.dtype)
    factor = tf.cast(how["prescale"] * how["postscale"], grad.dtype) * size
    gathered = ops.allgather(grad * factor, **_where(op))
    gathered.set_shape(op.inputs[0].shape)
    return gathered


@tf.RegisterGradient("TfcollectiveAlltoall")  # type: ignore[untyped-decorator]
def _alltoall(op: Any, grad: Any, _grad_received: Any) -> Any:
    back, _ = ops.alltoall(tf.convert_to_tensor(grad), op.outputs[1], **_where(op))
    back.set_shape(op.inputs[0].shape)
    return [back, None]


for _not_differentiable in (
    "TfcollectiveBarrier",
    "TfcollectiveJoin",
    "TfcollectiveBucketStart",
    "TfcollectiveBucketDone",
):
    tf.no_gradient(_not_differentiable)

# For operations that are not native ops: those of other engines, and of functions that XLA compiles.
GRADIENTS |= {
    "TfcollectiveAllreduce": _allreduce,
    "TfcollectiveGroupedAllreduce": _grouped_allreduce,
    "TfcollectiveAllgather": _allgather,
    "TfcollectiveBroadcast": _broadcast,
    "TfcollectiveReducescatter": _reducescatter,
    "TfcollectiveAlltoall": _alltoall,
}
