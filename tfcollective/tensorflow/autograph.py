"""Keeps TensorFlow's AutoGraph out of our code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

__all__ = ["opaque"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def opaque(function: _Function) -> _Function:
    """The function, left as it is where a ``tf.function`` calls it: AutoGraph would rewrite all that it calls."""
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))
