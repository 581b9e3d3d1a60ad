"""TensorFlow's own way to distribute, which excludes tfcollective's."""

from __future__ import annotations

import tensorflow as tf

from tfcollective.errors import UnsupportedError

__all__ = ["refuse_strategy"]


def refuse_strategy(what: str) -> None:
    """Raises UnsupportedError in the scope or in a replica of a ``tf.distribute`` strategy; names `what`.

    A strategy has several replicas in one process, each with variables of its own. OneDeviceStrategy has one.
    """
    if not tf.distribute.has_strategy():
        return
    kind = type(tf.distribute.get_strategy())
    if not issubclass(kind, tf.distribute.OneDeviceStrategy):
        raise UnsupportedError(
            f"{what}: not in the scope of tf.distribute.{kind.__name__}: tfcollective runs one process for each GPU. "
            "Leave the strategy out, start one process for each GPU with `tfcollective run -np N`, and choose its GPU "
            "by local_rank()"
        )
