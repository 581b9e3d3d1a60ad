"""Callbacks in a ``fit`` that all ranks do together: who writes, and when all of them stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import UnsupportedError
from tfcollective._runtime.communicator import Max, Min
from tfcollective.keras._backup import BackupAndRestore
from tfcollective.keras._global_batch import steps_per_execution
from tfcollective.keras._parallel import mode
from tfcollective.keras._parallel.results import leaves_of
from tfcollective.keras._parallel.run import begin_at, run
from tfcollective.keras._parallel.updates import recording_of
from tfcollective.tensorflow._objects import broadcast_object
from tfcollective.tensorflow._reductions import unnoted

# Keras's own classes that write files or speak to other machines, and do nothing else.
_WRITERS = ("BackupAndRestore", "CSVLogger", "ModelCheckpoint", "RemoteMonitor", "TensorBoard")
_BATCHES = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_TEST_BATCHES = ("on_test_batch_begin", "on_test_batch_end")
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


def with_our_backups(callbacks: Sequence[Any]) -> list[Any]:
    """The callbacks with ours for Keras 3's ``BackupAndRestore``, which begins an epoch that was interrupted with its
    first batch again. Keras 2's also restores models that are not built yet: it stays."""
    theirs = tf.keras.callbacks.BackupAndRestore
    return [
        BackupAndRestore(one.backup_dir, one.save_freq, one.delete_checkpoint)
        if type(one) is theirs and mode.has_distributions()
        else one
        for one in callbacks
    ]


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


class CountBatches(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Notes the number of batches that this rank evaluates."""

    def on_test_begin(self, logs: Any = None) -> None:
        """Begins to count."""
        run.agrees = False
        begin_at(0, 1 if mode.has_distributions() else steps_per_execution(self.model))

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts."""
        run.place += runtime.size()


class StopTogether(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Ends an evaluation on all ranks with the batch at which a callback of one rank has set ``stop_evaluating``.

    It is the last callback. Where a callback of some rank could stop there, ranks agree after each turn, and one whose
    batch is behind the last that counts forgets it.

    Args:
        others: all other callbacks.
    """

    def __init__(self, others: Sequence[Any]) -> None:
        super().__init__()
        self._may_stop = any(_may_stop_at_test_batches(one) for one in others)
        self._before: list[tuple[Any, Any]] = []
        self._noted = 0

    def on_test_begin(self, logs: Any = None) -> None:
        """Agrees whether ranks agree after each turn."""
        with unnoted():
            may = runtime.get_communicator().allreduce(float(self._may_stop), op=Max, name="callbacks of an evaluation")
        run.agrees = bool(may)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Keeps what the metrics have counted."""
        if run.agrees:
            variables = [one for metric in leaves_of(self.model.metrics) for one in metric.variables]
            self._before = [(one, tf.identity(tf.convert_to_tensor(one))) for one in variables]
            record = recording_of(self.model)
            self._noted = 0 if record is None else len(record.batches)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Agrees."""
        if not run.agrees:
            return
        mine = run.place if self.model.stop_evaluating else np.inf
        last, _ = _agree_on_last(self.model, mine, has_ended=False)
        if last < np.inf:
            self.model.stop_evaluating = True
        if run.place > last:
            self._forget()

    def _forget(self) -> None:
        for metric in leaves_of(self.model.metrics):
            metric.reset_state()
        for variable, value in self._before:
            variable.assign(value)
        record = recording_of(self.model)
        if record is not None:
            del record.batches[self._noted :]
        run.place -= runtime.size()


def stop_together(callbacks: Sequence[Any]) -> list[StopTogether]:
    """The callback that ends evaluations on all ranks; none with Keras 2, which has no ``stop_evaluating``."""
    return [StopTogether(callbacks)] if hasattr(tf.keras, "distribution") else []


def wait_for_last_batch(model: Any) -> None:
    """This rank has no more batches: others may have, and stop."""
    last, all_ended = np.inf, model.stop_evaluating
    while not all_ended and last == np.inf:
        last, all_ended = _agree_on_last(model, np.inf, has_ended=True)
    model.stop_evaluating = model.stop_evaluating or last < np.inf


def _agree_on_last(model: Any, place: float, *, has_ended: bool) -> tuple[float, bool]:
    """Returns the first place at which a rank stops, infinity if none does, and whether all ranks have ended.

    Raises:
        UnsupportedError: on all ranks: a rank stops after batches that do not follow each other in the data.
    """
    with unnoted():
        mine = np.array([place, float(has_ended)])
        last, all_ended = runtime.get_communicator().allreduce(mine, op=Min, name="stop_evaluating")
    together = steps_per_execution(model)
    if last < np.inf and run.turns[0] != together:
        raise UnsupportedError(
            f"stop_evaluating: with steps_per_execution={together} a rank's batches of one call do not follow each "
            "other in the data: use 1, or say how many steps= the evaluation has"
        )
    return float(last), bool(all_ended)


def _may_stop_at_test_batches(callback: Any) -> bool:
    kind = type(callback)
    if kind.__module__.startswith("tfcollective.") or kind in _only_look():
        return False
    base = tf.keras.callbacks.Callback
    return any(name in vars(callback) or getattr(kind, name) is not getattr(base, name) for name in _TEST_BATCHES)


def _only_look() -> list[Any]:
    return [BackupAndRestore, *(getattr(tf.keras.callbacks, name, None) for name in _ONLY_LOOK)]


def _may_stop_at_batches(callback: Any) -> bool:
    kind = type(callback)
    if isinstance(callback, tf.keras.callbacks.LambdaCallback):  # its methods are attributes of the object
        return True
    if kind in _only_look():
        return False
    base = tf.keras.callbacks.Callback
    return any(getattr(kind, name) is not getattr(base, name) for name in _BATCHES)
