"""What ``DistributedOptimizer`` adds to an optimizer. A plain object, so that Keras neither tracks nor saves it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfcollective.tensorflow.aggregation import GradientAggregation
from tfcollective.tensorflow.gradients import GradientOptions, reduce_gradients, variable_key
from tfcollective.tensorflow.guard import ReplicaGuard
from tfcollective.tensorflow.layers import LocalVariables

__all__ = ["ATTRIBUTE", "OptimizerState", "distributed_part", "state_of"]

ATTRIBUTE = "_tfcollective"
# By the ranks of the process set: a rank counts only the optimizers of its sets as the other members do.
_counts: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)


class OptimizerState:
    """One distributed optimizer's options, local variables and guard.

    Attributes:
        scope: names its plans; optimizers must be made in the same order on all ranks.
        local: the variables that stay this rank's own.
        factor: reduced gradients are multiplied by it.
        aggregation: adds up the gradients of several backward passes, where Keras does not.
        variables: those of the update that is being built.
        checked: the guard's look at them, which their gradients' reduction comes after.
        reductions: how often gradients were reduced (or, with one rank, would have been) while building updates.
        saved: values to give to the optimizer's variables once they exist: those of the optimizer it was made from.
    """

    def __init__(self, options: GradientOptions, saved: Sequence[Any] = ()) -> None:
        self.options = options
        ranks = options.process_set.ranks if options.process_set is not None else None
        self.scope = f"keras_optimizer.{next(_counts[tuple(ranks or ())])}"
        self.guard = ReplicaGuard(self.scope, process_set=options.process_set)
        self.local = LocalVariables()
        self.factor = 1.0
        self.aggregation: GradientAggregation | None = None
        self.variables: list[Any] = []
        self.checked: list[Any] = []
        self.reductions = 0
        self.saved = list(saved)

    def begin(self, variables: Sequence[Any]) -> None:
        """An update of these variables is being built."""
        self.variables = list(variables)
        local = self.local.keys()
        self.checked = self.guard.step([v for v in self.variables if variable_key(v) not in local])

    def reduce(self, gradients: Sequence[Any]) -> list[Any]:
        """Reduces the gradients of the variables of :meth:`begin`."""
        self.reductions += 1
        with tf.control_dependencies(self.checked):
            reduced = reduce_gradients(
                gradients, self.variables, scope=self.scope, options=self.options, local=self.local.keys()
            )
        return reduced if self.factor == 1.0 else [_times(gradient, self.factor) for gradient in reduced]

    def restore(self, variables: Sequence[Any]) -> None:
        """Gives the optimizer, now built, the values that it was made with."""
        saved, self.saved = self.saved, []
        if len(saved) == len(variables):
            for variable, value in zip(variables, saved, strict=True):
                variable.assign(value)


def _times(gradient: Any, factor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_times(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return None if gradient is None else gradient * tf.cast(factor, gradient.dtype)


def state_of(optimizer: Any) -> OptimizerState | None:
    """The state of a distributed optimizer; None of any other."""
    state = getattr(optimizer, "__dict__", {}).get(ATTRIBUTE)
    return state if isinstance(state, OptimizerState) else None


def distributed_part(optimizer: Any) -> OptimizerState | None:
    """The state of `optimizer`, or of the one inside it if it is a LossScaleOptimizer."""
    return state_of(optimizer) or state_of(getattr(optimizer, "inner_optimizer", None))
