"""Keras models over changes of the world: their state, and the callbacks that commit it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfcollective._base.errors import InvalidArgumentError
from tfcollective.elastic import HorovodInternalError, HostsUpdatedInterrupt, State, run
from tfcollective.keras._optimizers import optimizers_of
from tfcollective.keras._variables import (
    assigned_weights,
    build_optimizer,
    distinct,
    optimizer_variables,
    optimizers_variables,
)
from tfcollective.tensorflow._gradients import variable_key
from tfcollective.tensorflow.elastic import TensorFlowState

__all__ = [
    "CommitStateCallback",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(TensorFlowState):
    """A model's weights, the variables of its optimizers with their learning rates, and values by name.

    Of what reset callbacks assign to variables the learning rates count. Anything else goes back to the last commit:
    ported callbacks make a step of ``fit``, which only this rank's data have part in.

    Args:
        model: built; or several of them.
        optimizer: used besides, or instead of, that of ``compile``; or several. The variables of one that is not built
            are made now, for the trainable variables of the models.
        backend: Horovod's; without effect.
        values: see :class:`ObjectState`.

    Raises:
        InvalidArgumentError: a model is not built. It is a ValueError, too, as with Horovod.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **values: Any) -> None:
        del backend
        self.model, self.optimizer = model, optimizer
        models, optimizers = _listed(model), _listed(optimizer)
        held = _variables_of(models, optimizers)
        rates = learning_rates(models, optimizers)
        variables = distinct([*held, *rates])  # those of Keras 2 are not among the optimizer's variables
        self._rates = _places(rates, variables)
        super().__init__(variables, **values)

    def take(self, root: int) -> None:
        """Takes the state, as :class:`State` does. Layers derive again what they derive from their weights."""
        with assigned_weights(_listed(self.model)):
            super().take(root)

    def _keep_what_callbacks_assigned(self) -> None:
        """See :class:`TensorFlowState`."""
        self._keep_values(self._rates)


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, Iterable) and isinstance(given, list | tuple) else [given]


def _variables_of(models: list[Any], optimizers: list[Any]) -> list[Any]:
    for model in models:
        if not model.built:
            raise InvalidArgumentError(
                "model: it is not built yet, so it has no variables to keep: build it, or run one step, before the "
                "state is made"
            )
        build_optimizer(model)
    trained = distinct([variable for model in models for variable in model.trainable_variables])
    for optimizer in optimizers:
        if hasattr(optimizer, "build") and not getattr(optimizer, "built", False):
            optimizer.build(trained)
    own = [variable for optimizer in optimizers for variable in optimizer_variables(optimizer)]
    held = [variable for model in models for variable in (*model.weights, *optimizers_variables(model))]
    return distinct([*held, *own])


def learning_rates(models: list[Any], optimizers: list[Any]) -> list[Any]:
    """The variables that hold the optimizers' learning rates: those of ``compile``, of the models' own, and these."""
    every = [*(one for model in models for one in optimizers_of(model).values()), *optimizers]
    found = [getattr(optimizer, "learning_rate", None) for optimizer in every]
    return distinct([rate for rate in found if hasattr(rate, "assign")])  # a schedule or a number is none


def _places(some: list[Any], variables: list[Any]) -> list[int]:
    wanted = {variable_key(variable) for variable in some}
    return [place for place, variable in enumerate(variables) if variable_key(variable) in wanted]


class CommitStateCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Commits the state at the end of every `batches_per_commit` batches, and of every epoch.

    Args:
        state: what to commit.
        batches_per_commit: counted from 0 at the start of training.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self._state = state
        self._every = batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Resets the count."""
        self._left = self._every

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits, if it is time."""
        self._left -= 1
        if self._left == 0:
            self._state.commit()
            self._left = self._every

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        self._state.commit()


class UpdateBatchStateCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Keeps in ``state.batch`` the number of the batch that ended last, and 0 at the end of an epoch.

    Args:
        state: has a value ``batch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the number."""
        self._state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The next epoch begins with its first batch."""
        self._state.batch = 0


class UpdateEpochStateCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Counts in ``state.epoch`` the epochs that are done, over several calls of ``fit``: for
    ``fit(epochs=total - state.epoch)`` without ``initial_epoch``.

    Args:
        state: has a value ``epoch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state
        self._done = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Counts on from what is done."""
        self._done = self._state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts the epoch."""
        self._state.epoch = self._done + epoch + 1
