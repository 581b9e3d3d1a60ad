"""Callbacks of rank 0 in a job in which another rank may become rank 0."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime

_HOOKS = (
    *("on_epoch_end", "on_train_batch_begin", "on_train_batch_end", "on_train_end"),
    *("on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end"),
)


class RankZeroCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Passes on to `callback` what happens while this rank is rank 0. For one that becomes rank 0 later, training
    begins then; files that have been begun are continued.

    Attributes:
        callback: the one that writes.
    """

    def __init__(self, callback: Any) -> None:
        super().__init__()
        self.callback = callback
        self._begun = self._epoch_begun = False
        self._epoch: int | None = None

    def set_model(self, model: Any) -> None:
        """The model is the callback's, too."""
        super().set_model(model)
        self.callback.set_model(model)

    def set_params(self, params: Any) -> None:
        """Passes the parameters of training on likewise."""
        super().set_params(params)
        self.callback.set_params(params)

    def on_train_begin(self, logs: Any = None) -> None:
        """Training begins, for rank 0."""
        if runtime.rank() == 0:
            self._begun = True
            self.callback.on_train_begin(logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """An epoch begins."""
        self._epoch, self._epoch_begun = epoch, False
        self._is_due()

    def _is_due(self) -> bool:
        """True if this rank is rank 0. A rank that has just become rank 0 begins."""
        if runtime.rank() != 0:
            return False
        if not self._begun:
            if isinstance(self.callback, tf.keras.callbacks.CSVLogger):
                self.callback.append = True
            self.on_train_begin()
        if self._epoch is not None and not self._epoch_begun:
            self._epoch_begun = True
            self.callback.on_epoch_begin(self._epoch)
        return True


def _passing_on(name: str) -> Any:
    def hook(self: RankZeroCallback, *args: Any, **kwargs: Any) -> None:
        if self._is_due():
            getattr(self.callback, name)(*args, **kwargs)

    hook.__name__ = name
    hook.__doc__ = "Passes it on, on rank 0."
    return hook


for _name in _HOOKS:
    setattr(RankZeroCallback, _name, _passing_on(_name))
