"""Gradients of the ops. Registered when this module is imported; loads no library.

The gradient is that of the sum of all ranks' losses: what a rank's output means to the others' losses comes back to it.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcollective import runtime
from tfcollective.communicator import Average, Op, Sum
from tfcollective.errors import UnsupportedError
from tfcollective.tensorflow import ops

__all__: list[str] = []


def _linear(op: Any) -> tuple[Op, float, float]:
    """The op's reduction, if it has a gradient: Average and Sum do."""
    reduction = Op(op.get_attr("op"))
    if reduction not in (Average, Sum):
        raise UnsupportedError(f"{reduction.name.capitalize()} has no gradient; only Average and Sum have")
    return reduction, op.get_attr("prescale"), op.get_attr("postscale")


def _name(op: Any) -> str:
    text: bytes = op.get_attr("tensor_name")
    return f"{tf.compat.as_text(text)}/gradient"


def _own_rows(total: Any, like: Any, name: str) -> Any:
    """The rows of `total` that came from this rank, whose tensor was `like`."""
    count = tf.shape(like, out_type=tf.int64)[0]
    counts = ops.allgather(tf.reshape(count, [1]), name=f"{name}/rows")
    begin = tf.reduce_sum(counts[: runtime.rank()])
    rows = total[begin : begin + count]
    rows.set_shape(like.shape)
    return rows


@tf.RegisterGradient("TfcollectiveAllreduce")  # type: ignore[untyped-decorator]
def _allreduce(op: Any, grad: Any) -> Any:
    reduction, prescale, postscale = _linear(op)
    return ops.allreduce(
        tf.convert_to_tensor(grad), op=reduction, prescale=prescale, postscale=postscale, name=_name(op)
    )


@tf.RegisterGradient("TfcollectiveGroupedAllreduce")  # type: ignore[untyped-decorator]
def _grouped_allreduce(op: Any, *grads: Any) -> Any:
    reduction, prescale, postscale = _linear(op)
    tensors = [tf.convert_to_tensor(grad) for grad in grads]
    return ops.grouped_allreduce(tensors, op=reduction, prescale=prescale, postscale=postscale, name=_name(op))


@tf.RegisterGradient("TfcollectiveAllgather")  # type: ignore[untyped-decorator]
def _allgather(op: Any, grad: Any) -> Any:
    total = ops.allreduce(tf.convert_to_tensor(grad), op=Sum, prescale=1.0, postscale=1.0, name=_name(op))
    return _own_rows(total, op.inputs[0], _name(op))


@tf.RegisterGradient("TfcollectiveBroadcast")  # type: ignore[untyped-decorator]
def _broadcast(op: Any, grad: Any) -> Any:
    total = ops.allreduce(tf.convert_to_tensor(grad), op=Sum, prescale=1.0, postscale=1.0, name=_name(op))
    return total if runtime.rank() == op.get_attr("root_rank") else tf.zeros_like(total)


@tf.RegisterGradient("TfcollectiveReducescatter")  # type: ignore[untyped-decorator]
def _reducescatter(op: Any, grad: Any) -> Any:
    reduction, prescale, postscale = _linear(op)
    factor = prescale * postscale / (runtime.size() if reduction == Average else 1)
    grad = tf.convert_to_tensor(grad)
    gathered = ops.allgather(grad * tf.cast(factor, grad.dtype), name=_name(op))
    gathered.set_shape(op.inputs[0].shape)
    return gathered


@tf.RegisterGradient("TfcollectiveAlltoall")  # type: ignore[untyped-decorator]
def _alltoall(op: Any, grad: Any, _grad_received: Any) -> Any:
    back, _ = ops.alltoall(tf.convert_to_tensor(grad), op.outputs[1], name=_name(op))
    back.set_shape(op.inputs[0].shape)
    return [back, None]


for _not_differentiable in ("TfcollectiveBarrier", "TfcollectiveBucketStart", "TfcollectiveBucketDone"):
    tf.no_gradient(_not_differentiable)
