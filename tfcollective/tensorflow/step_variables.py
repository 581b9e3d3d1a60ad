"""Variables that a traced step needs in addition to those of its model."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

__all__ = ["make_eagerly"]


def make_eagerly(initial: Callable[[], Any], name: str, device: str | None = None) -> Any:
    """A variable that is not trained, made eagerly in whatever trace of a ``tf.function`` it is needed.

    ``tf.init_scope`` alone leaves the graph but keeps the creators of variables that the ``tf.function`` has set, and
    in every trace but the first they refuse. They belong to a thread, so the variable is made on another one.

    Args:
        initial: makes the initial value.
        name: of the variable.
        device: where it lives; where TensorFlow puts variables if None.
    """

    def make() -> Any:
        with tf.device(device):
            return tf.Variable(initial(), trainable=False, name=name)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()
