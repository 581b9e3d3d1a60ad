"""Callbacks that make ranks equal: weights at the start, metrics at the end of an epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfcollective import runtime
from tfcollective.communicator import Average
from tfcollective.keras.state import distributed_part
from tfcollective.keras.variables import build_optimizer, optimizer_variables
from tfcollective.tensorflow.gradients import variable_key
from tfcollective.tensorflow.guard import ReplicaGuard
from tfcollective.tensorflow.layers import LocalVariables
from tfcollective.tensorflow.variables import broadcast_variables

__all__ = ["BroadcastGlobalVariablesCallback", "MetricAverageCallback"]


class BroadcastGlobalVariablesCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Gives all ranks the weights and the optimizer state of one, so that they start equal.

    It happens before the first step if the model is built (the optimizer is built for it), else after the first step.

    Args:
        root_rank: whose weights and state.
        device: Horovod's; without effect.
        local_variables: variables that stay each rank's own.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None) -> None:
        super().__init__()
        del device
        self._root_rank = root_rank
        self._local = LocalVariables()
        for variable in local_variables or ():
            self._local.add(variable)
        self._done = False

    def register_local_var(self, var: Any) -> None:
        """Leaves `var` to each rank."""
        self._local.add(var)

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts if the variables exist."""
        del logs
        self._done = False
        if self.model.built and self.model.weights:
            build_optimizer(self.model)
            self._broadcast()
        else:
            self._hold_check()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts if it could not be done before the first step."""
        del batch, logs
        if not self._done:
            self._broadcast()
            self._restart_check()

    def _broadcast(self) -> None:
        variables = [*self.model.weights, *optimizer_variables(getattr(self.model, "optimizer", None))]
        local = self._local.keys()
        broadcast_variables([v for v in variables if variable_key(v) not in local], self._root_rank)
        self._done = True

    def _hold_check(self) -> None:
        if (guard := self._guard()) is not None:
            guard.hold()

    def _restart_check(self) -> None:
        if (guard := self._guard()) is not None:
            guard.restart()

    def _guard(self) -> ReplicaGuard | None:
        state = distributed_part(getattr(self.model, "optimizer", None))
        return None if state is None else state.guard


class MetricAverageCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Averages the metrics of an epoch over all ranks, in place: put it before callbacks that use them.

    All ranks must have the same metrics.

    Args:
        device: Horovod's; without effect.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        del device

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replaces every number in `logs` by its average."""
        if not logs or runtime.size() == 1:
            return
        import numpy as np

        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        values = np.array([float(logs[name]) for name in names], np.float64)
        label = f"metrics of epoch {epoch}: {', '.join(names)}"
        averages = runtime.get_communicator().allreduce(values, op=Average, name=label)
        logs.update(zip(names, averages.tolist(), strict=True))
