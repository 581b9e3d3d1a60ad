"""What all collectives on tensors have in common where a user's program calls them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

from tfcollective.errors import InvalidArgumentError

__all__ = ["ArgumentError", "collective", "opaque"]

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
    """The function, whose InvalidArgumentError is TensorFlow's, too, and which AutoGraph leaves as it is."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except InvalidArgumentError as error:
            if isinstance(error, ArgumentError):
                raise
            raise ArgumentError(None, None, str(error)) from error

    return opaque(cast(_Function, called))


def opaque(function: _Function) -> _Function:
    """The function, left as it is where a ``tf.function`` calls it: AutoGraph would rewrite all that it calls."""
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))
