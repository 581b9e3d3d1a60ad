"""The order in which gradients become ready, learned from the function that computes them.

TensorFlow starts an op when its inputs are there, so a tensor is ready after the longest chain of ops that leads to it.
In a traced function that chain is known before the first step, and it is the same on all ranks, because they trace the
same program: no rank has to tell the others, and no step has to be traced again.

What a trace does not know of shapes is computed by ops in the step, and ranks need not know the same: one whose last
batch is smaller traces for any size. So ops that deal with shapes do not count, nor do those that only move or repeat
elements where a shape asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_UNDER_WAY = -1
_SHAPING = frozenset(
    {"BroadcastTo", "Cast", "ExpandDims", "Fill", "Identity", "IdentityN", "PreventGradient", "Reshape", "Snapshot"}
    | {"Squeeze", "StopGradient", "Sum", "Tile", "Transpose"}
)


def ready_order(gradients: Sequence[Any]) -> list[int]:
    """Places of the gradients, the first to be ready in front.

    Args:
        gradients: tensors or IndexedSlices. Where chains are equally long, as where all wait for one norm, and outside
            of a graph the last one comes first: variables are made from the first layer to the last.
    """
    backwards = list(reversed(range(len(gradients))))
    if tf.executing_eagerly():
        return backwards
    ops = [_op(gradient) for gradient in gradients]
    if any(op is None for op in ops):
        return backwards
    lengths = _chains(ops)
    return sorted(backwards, key=lambda index: lengths[ops[index]])


def _op(gradient: Any) -> Any:
    tensor = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return getattr(tensor, "op", None)  # a captured constant has none


def _chains(ops: Sequence[Any]) -> dict[Any, int]:
    """Length of the longest chain of ops that ends in each of `ops` and in all before them; see :func:`_counts`. A loop
    of a v1 graph counts as if it ran once."""
    lengths: dict[Any, int] = {}
    stack = list(ops)
    while stack:
        op = stack[-1]
        if lengths.get(op, _UNDER_WAY) != _UNDER_WAY:
            stack.pop()
            continue
        sources = [tensor.op for tensor in op.inputs]
        missing = [source for source in sources if source not in lengths]
        lengths[op] = _UNDER_WAY
        if missing:
            stack.extend(missing)
            continue
        lengths[op] = _counts(op) + max((lengths[source] for source in sources), default=0)
        stack.pop()
    return lengths


def _counts(op: Any) -> bool:
    """True if all traces of a program have this op, whatever they know of shapes."""
    return op.type not in _SHAPING and any(output.dtype.is_floating or output.dtype.is_complex for output in op.outputs)
