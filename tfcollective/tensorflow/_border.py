"""The common entry of all collectives on tensors that a user's program calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

from tfcollective._base.errors import InvalidArgumentError
from tfcollective.tensorflow._docstrings import documented

_Function = TypeVar("_Function", bound=Callable[..., Any])


class ArgumentError(InvalidArgumentError, tf.errors.InvalidArgumentError):  # type: ignore[misc]  # not typed
    """A bad argument of a collective, found before its operation runs.

    It is TensorFlow's error, too: with Horovod the same arguments are found when the operation runs, so programs catch
    ``tf.errors.InvalidArgumentError``. The constructor is that of TensorFlow's errors, by which AutoGraph and pickle
    make an error again.
    """

    def __init__(self, node_def: Any, op: Any, message: str, *more: Any) -> None:
        tf.errors.InvalidArgumentError.__init__(self, node_def, op, message, *more)
        self.peer = None
        self.sys_errno = None


def collective(function: _Function) -> _Function:
    """The function, whose InvalidArgumentError is TensorFlow's, too, and which AutoGraph leaves as it is; documented.

    Where TensorFlow refuses an argument that is no dense tensor of numbers, the error says so.
    """
    return _at_border(documented(function), _unsuitable)


def collective_of_objects(function: _Function) -> _Function:
    """Decorates as :func:`collective` does, for a function that takes any value."""
    return _at_border(documented(function), lambda arguments: None)


def _at_border(function: _Function, wrong_with: Callable[[Any], str | None]) -> _Function:
    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except InvalidArgumentError as error:
            if isinstance(error, ArgumentError):
                raise
            raise ArgumentError(None, None, str(error)) from error
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            found = wrong_with([args, kwargs])
            if found is None:
                raise
            raise ArgumentError(None, None, found) from error

    return opaque(cast(_Function, called))


def _unsuitable(arguments: Any) -> str | None:
    """Returns what is wrong with the first argument that no collective can take; None if none is known to be wrong."""
    for value in tf.nest.flatten(arguments):
        if isinstance(value, tf.RaggedTensor):
            return "tensor: a RaggedTensor: pass its flat_values and row_splits, or to_tensor()"
        if isinstance(value, tf.SparseTensor):
            return "tensor: a SparseTensor: pass tf.sparse.to_dense(tensor), or its indices and values to allgather"
        dtype = getattr(value, "dtype", None)
        if tf.is_tensor(value) and dtype in (tf.string, tf.variant, tf.resource):
            return f"tensor: the type {dtype.name} has no numbers: allgather_object and broadcast_object take any value"
    return None


def opaque(function: _Function) -> _Function:
    """The function, left as it is where a ``tf.function`` calls it: AutoGraph would rewrite all that it calls."""
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))
