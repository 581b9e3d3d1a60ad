"""Callbacks in a ``fit`` that all ranks do together: who writes, and when all of them stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._runtime.communicator import Max
from tfcollective.tensorflow._objects import broadcast_object
from tfcollective.tensorflow._reductions import unnoted

# Keras's own classes that write files or speak to other machines, and do nothing else.
_WRITERS = ("BackupAndRestore", "CSVLogger", "ModelCheckpoint", "RemoteMonitor", "TensorBoard")
_BATCHES = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
# Keras's own that look at single batches and do not stop training.
_ONLY_LOOK = ("BackupAndRestore", "ModelCheckpoint", "ProgbarLogger", "SwapEMAWeights", "TensorBoard")


def for_this_rank(callbacks: Sequence[Any]) -> list[Any]:
    """The callbacks without those that write where this is not rank 0.

    Subclasses stay: they may do more than write.
    """
    if runtime.rank() == 0:
        return list(callbacks)
    kinds = [getattr(tf.keras.callbacks, name, None) for name in _WRITERS]
    return [one for one in callbacks if type(one) not in kinds]


class InStep(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Begins ``fit`` on all ranks in the epoch in which rank 0 begins, which may have restored a backup, and ends it on
    all after the same step, when a callback of one rank has set ``stop_training``.

    It is the last callback. Ranks agree at the end of each epoch, and after each batch only where a callback could stop
    there.

    Args:
        others: all other callbacks.
    """

    def __init__(self, others: Sequence[Any]) -> None:
        super().__init__()
        self._after_batches = any(_may_stop_at_batches(one) for one in others)

    def on_train_begin(self, logs: Any = None) -> None:
        """Takes rank 0's epoch; Keras 2 asks for it later."""
        if hasattr(self.model, "_initial_epoch"):
            self.model._initial_epoch = broadcast_object(self.model._initial_epoch, name="initial epoch")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Agrees."""
        if self._after_batches:
            self._agree()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Agrees."""
        self._agree()

    def _agree(self) -> None:
        with unnoted():
            stops = runtime.get_communicator().allreduce(float(self.model.stop_training), op=Max, name="stop_training")
        self.model.stop_training = bool(stops)


def _may_stop_at_batches(callback: Any) -> bool:
    kind = type(callback)
    if isinstance(callback, tf.keras.callbacks.LambdaCallback):  # its methods are attributes of the object
        return True
    if kind in [getattr(tf.keras.callbacks, name, None) for name in _ONLY_LOOK]:
        return False
    base = tf.keras.callbacks.Callback
    return any(getattr(kind, name) is not getattr(base, name) for name in _BATCHES)
