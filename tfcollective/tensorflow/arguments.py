"""What the collectives' arguments mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from tfcollective.communicator import Average, Max, Min, Op, Product, Sum
from tfcollective.errors import InvalidArgumentError

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MEANINGS = {
    "average": "Horovod's old way to choose Average or Sum.",
    "device": "Horovod's; without effect.",
    "device_dense": "Horovod's; without effect.",
    "device_sparse": "Horovod's; without effect.",
    "compression": "how dense tensors travel, of ``Compression``; without effect on gradients with Adasum.",
    "op": "Average (default), Sum, Min, Max or Product.",
    "prescale_factor": "factor applied to the inputs.",
    "postscale_factor": "factor applied to the result.",
    "root_rank": "whose values count; a rank of the world, also with a process set.",
    "name": "matches the operation between ranks; made from the place of the call if None.",
    "ignore_name_scope": "leave the name scope out of a name that is made from the place of the call.",
    "process_set": "whose ranks take part; all if None.",
    "sparse_as_dense": "turn IndexedSlices into dense tensors first.",
    "gradient_predivide_factor": "divide by it before the sum, multiply by it after; Average only.",
    "backward_passes_per_step": "how many passes are added up in this process for one reduction and one update.",
    "average_aggregated_gradients": "take the mean of those passes instead of their sum.",
    "num_groups": "into how many buckets gradients are put whatever their size; 0: by size.",
    "groups": "a number of groups, or lists of variables whose gradients share a bucket.",
    "local_layers": "a layer or a list of them; they may be built later.",
    "scale_local_gradients": "divide the gradients of local variables by the number of ranks, also with Sum.",
}


def documented(function: _Function) -> _Function:
    """The function, its docstring completed by those of its arguments that mean the same in several functions."""
    text = inspect.getdoc(function) or ""
    head, _, rest = text.partition("\nArgs:\n")
    own, gap, more = rest.partition("\n\n")
    missing = [name for name in inspect.signature(function).parameters if f"    {name}: " not in own]
    lines = [f"    {name}: {_MEANINGS[name]}" for name in missing if name in _MEANINGS]
    if own and lines:
        function.__doc__ = "\n".join((f"{head}\nArgs:", own.rstrip(), *lines)) + gap + more
    return function


def chosen_op(average: bool | None, op: Op | None, default: Op = Average) -> Op:
    """The reduction that Horovod's pair of arguments asks for.

    Raises:
        InvalidArgumentError: both are given, or there is no such reduction.
    """
    if average is not None:
        if op is not None:
            raise InvalidArgumentError("op and average cannot be combined: give op")
        return Average if average else Sum
    if op is None:
        return default
    if op not in (Average, Sum, Min, Max, Product):
        raise InvalidArgumentError(f"op: expected Average, Sum, Min, Max or Product, got {op!r}")
    return Op(op)


def with_rows(tensor: Any, function: str) -> Any:
    """The tensor, which must have a first dimension; InvalidArgumentError names the function that needs it."""
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        raise InvalidArgumentError(f"tensor: {function} needs at least one dimension")
    return tensor


def scaled(tensor: Any, factor: float) -> Any:
    """The tensor times a factor, in float64 so that integers survive."""
    if factor == 1.0:
        return tf.identity(tensor)
    return tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype)
