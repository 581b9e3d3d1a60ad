"""Callbacks that change the learning rate while ``fit`` runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import InvalidArgumentError
from tfcollective._runtime import ProcessSet
from tfcollective.keras._lars import LARS
from tfcollective.keras._mixin import DistributedMixin


class LearningRateScheduleCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Sets the learning rate to `initial_lr` times a multiplier, and logs it as "lr".

    A velocity that already holds the old learning rate is scaled to the new one (Goyal et al. 2017, "Accurate, Large
    Minibatch SGD", section 3), which is what a momentum that is corrected for one step amounts to. SGD, LARS and
    RMSprop have such velocities; what other optimizers keep holds no learning rate and stays as it is.

    Args:
        initial_lr: what is multiplied.
        multiplier: a function of the epoch, or a number m for m ** (epoch - start_epoch), once an epoch.
        start_epoch: the first epoch in which the rate is changed.
        end_epoch: the first in which it is not any more; None: never.
        staircase: change it once an epoch; else before every batch, with an epoch that has a fraction.
        momentum_correction: scale the velocity of an optimizer with momentum.
        steps_per_epoch: needed without `staircase` where Keras does not know it.

    Raises:
        InvalidArgumentError: the optimizer has a schedule of its own, or the steps of an epoch are not known.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase or not callable(multiplier)
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.multiplier: Callable[[float], float] = (
            multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)
        )
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks that the rate can be set, and reads the steps of an epoch."""
        _check_settable(_optimizer(self.model))
        if self.steps_per_epoch is None:
            self.steps_per_epoch = self.params.get("steps")
        if not self.steps_per_epoch and not self.staircase:
            raise InvalidArgumentError("steps_per_epoch: needed, as Keras does not know how many batches an epoch has")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate where it is time."""
        if self._epoch < self.start_epoch or (self.end_epoch is not None and self._epoch >= self.end_epoch):
            return
        if not self.staircase:
            self._set(self._epoch + batch / float(self.steps_per_epoch or 1))
        elif batch == 0:
            self._set(self._epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Logs the rate."""
        if logs is not None:
            logs["lr"] = _rate(_optimizer(self.model))

    def _set(self, epoch: float) -> None:
        optimizer = _optimizer(self.model)
        before = _rate(optimizer)
        optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)
        after = _rate(optimizer)
        if self.momentum_correction and before > 0 and after != before:
            for velocity in _velocities(optimizer, self.model):
                velocity.assign(velocity * tf.cast(after / before, velocity.dtype))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr` divided by the number of ranks to `initial_lr`, batch by
    batch, as Goyal et al. 2017.

    Args:
        initial_lr: the rate after warmup: that for one rank times the number of ranks.
        warmup_epochs: how long it takes.
        momentum_correction: scale the velocity of an optimizer with momentum.
        steps_per_epoch: needed where Keras does not know it.
        verbose: 1: the first of the ranks says when it is done.
        process_set: whose ranks train together, and are counted; all if None. On other ranks there is no warmup.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        *,
        process_set: ProcessSet | None = None,
    ) -> None:
        super().__init__(
            initial_lr,
            self._warmup,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self._warmup_epochs = warmup_epochs
        self.verbose = verbose
        self._process_set = process_set

    def _warmup(self, epoch: float) -> float:
        # One batch ahead, so that the last batch of the last epoch has the whole rate.
        done = (epoch + 1.0 / float(self.steps_per_epoch or 1)) / self._warmup_epochs
        members = runtime.members(self._process_set, outside=True)
        size = members.size if members.included else 1
        return (done * (size - 1) + 1) / size

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Logs the rate, and the end of the warmup."""
        super().on_epoch_end(epoch, logs)
        if (
            epoch == self._warmup_epochs - 1
            and self.verbose > 0
            and runtime.members(self._process_set, outside=True).rank == 0
        ):
            rate = _rate(_optimizer(self.model))
            sys.stdout.write(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.\n")


def _optimizer(model: Any) -> Any:
    """The optimizer, or the one inside a LossScaleOptimizer."""
    optimizer = model.optimizer
    return getattr(optimizer, "inner_optimizer", optimizer)


def _rate(optimizer: Any) -> float:
    return float(tf.convert_to_tensor(optimizer.learning_rate))


def _check_settable(optimizer: Any) -> None:
    own = getattr(optimizer, "_learning_rate", None)
    hyper = getattr(optimizer, "_hyper", {}).get("learning_rate")  # of Keras 2's legacy optimizers
    for rate in (own, hyper):
        if isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule):
            raise InvalidArgumentError(
                "the optimizer has a LearningRateSchedule of its own: make it with a number as the learning rate"
            )


def _velocities(optimizer: Any, model: Any) -> list[Any]:
    """The variables that hold past gradients times past learning rates: the momentum of Keras's SGD and RMSprop.

    Other optimizers keep past gradients as they came (Muon, Adam): the rate is applied to them when they are used. What
    an update of a user's own keeps is not known, and left alone, too.
    """
    if not _updates_with_the_rate_in_its_momentum(type(optimizer)):
        return []
    if hasattr(optimizer, "get_slot_names"):  # Keras 2's legacy optimizers
        if "momentum" not in optimizer.get_slot_names():
            return []
        return [optimizer.get_slot(variable, "momentum") for variable in model.trainable_variables]
    held = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []
    return [velocity for velocity in held if velocity is not None]


def _updates_with_the_rate_in_its_momentum(kind: type) -> bool:
    """True if the class that defines the update is one of those; distributed classes inherit it."""
    rooms = (tf.keras.optimizers, getattr(tf.keras.optimizers, "legacy", None))
    known = [LARS, *(getattr(room, name, None) for room in rooms for name in ("SGD", "RMSprop"))]
    update = "_resource_apply_dense" if hasattr(kind, "_resource_apply_dense") else "update_step"
    # A distributed class only acts before the update.
    kinds = (c for c in kind.__mro__ if not issubclass(c, DistributedMixin))
    return next((c for c in kinds if update in vars(c)), None) in known
