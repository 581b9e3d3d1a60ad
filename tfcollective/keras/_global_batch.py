"""Shares of a global batch: what makes the average of the ranks' gradients that of the mean over all of its rows.

A rank's gradient is the mean over its own rows. Where ranks have unequally many, it counts by its share: before the
average it is multiplied by the rank's rows times the number of ranks over all rows. The factor is in a variable, so the
compiled step stays as it is when the shares change.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import UnsupportedError
from tfcollective._runtime.communicator import Average
from tfcollective.keras._global_mean import GlobalMeanLoss
from tfcollective.keras._optimizers import distributed_states, innermost
from tfcollective.keras._state import OptimizerState, state_of
from tfcollective.tensorflow._variables import make_eagerly


class ShareWeight:
    """The factor of this rank's gradients, in all optimizers of a model.

    Args:
        model: compiled. Its training step is traced again if it was traced without the factor.

    Raises:
        UnsupportedError: the model trains in a way for which a factor of the gradients is not right; says which.
    """

    def __init__(self, model: Any) -> None:
        _check(model)
        states = distributed_states(model).values()
        for state in states:
            if state.weight is None:
                state.weight = make_eagerly(lambda: tf.constant(1.0), "tfcollective_share")
                model.train_function = None
        self._variables = [state.weight for state in states]
        self._value: float | None = None

    def assign(self, value: float) -> None:
        """Assigns the value, from the next step on."""
        if value != self._value:
            for variable in self._variables:
                variable.assign(value)
            self._value = value


def steps_per_execution(model: Any) -> int:
    """The number of steps that a call of the model's training function makes; Keras 2 has its own name for it."""
    return int(getattr(model, "steps_per_execution", None) or getattr(model, "_steps_per_execution", None) or 1)


def _check(model: Any) -> None:
    if steps_per_execution(model) != 1:
        raise UnsupportedError("steps_per_execution: with global_batch of Elastic it is 1: shares may change each step")
    for loss in tf.nest.flatten(getattr(model, "loss", None)):
        if isinstance(loss, GlobalMeanLoss):
            raise UnsupportedError("loss: GlobalMeanLoss weighs gradients by itself: leave out global_batch of Elastic")
        if getattr(loss, "reduction", None) == "sum":
            raise UnsupportedError(
                "loss: with global_batch of Elastic it has to be a mean over the rows, not reduction='sum'"
            )
    for place, optimizer in innermost(model).items():
        state = state_of(optimizer)
        if state is not None:
            _check_optimizer(place, optimizer, state)
        elif runtime.settings().elastic or runtime.size() > 1:
            raise UnsupportedError(
                f"{place}: global_batch of Elastic weights the gradients in a DistributedOptimizer, and this optimizer "
                "is none: wrap it, or use ElasticSampler(global_batch=...) in a loop with a DistributedGradientTape"
            )


def _check_optimizer(place: str, optimizer: Any, state: OptimizerState) -> None:
    if state.options.op != Average:
        raise UnsupportedError(f"{place}: with global_batch of Elastic its gradients are averaged: use op=Average")
    if state.options.process_set is not None:
        raise UnsupportedError(
            f"{place}: with global_batch of Elastic it reduces over all ranks: leave out process_set"
        )
    if state.passes.count > 1 or getattr(optimizer, "gradient_accumulation_steps", None):
        raise UnsupportedError(
            f"{place}: with global_batch of Elastic each batch is one update: leave out backward_passes_per_step or "
            "gradient_accumulation_steps, which would make an update of batches of different size"
        )
