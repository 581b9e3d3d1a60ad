"""What ``DistributedOptimizer`` adds to an optimizer. A plain object, so that Keras neither tracks nor saves it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tfcollective.tensorflow.gradients import GradientOptions, reduce_gradients, variable_key
from tfcollective.tensorflow.guard import ReplicaGuard

__all__ = ["ATTRIBUTE", "OptimizerState", "distributed_part", "state_of"]

ATTRIBUTE = "_tfcollective"
_count = itertools.count()


class OptimizerState:
    """One distributed optimizer's options, local variables and guard.

    Attributes:
        scope: names its plans; optimizers must be made in the same order on all ranks.
        local: keys of the variables that stay this rank's own.
        variables: those of the update that is being built.
        reductions: how often gradients were reduced (or, with one rank, would have been) while building updates.
        saved: values to give to the optimizer's variables once they exist: those of the optimizer it was made from.
    """

    def __init__(self, options: GradientOptions, saved: Sequence[Any] = ()) -> None:
        self.options = options
        self.scope = f"keras_optimizer.{next(_count)}"
        self.guard = ReplicaGuard(self.scope)
        self.local: set[int] = set()
        self.variables: list[Any] = []
        self.reductions = 0
        self.saved = list(saved)

    def begin(self, variables: Sequence[Any]) -> None:
        """An update of these variables is being built."""
        self.variables = list(variables)
        self.guard.step([v for v in self.variables if variable_key(v) not in self.local])

    def reduce(self, gradients: Sequence[Any]) -> list[Any]:
        """Reduces the gradients of the variables of :meth:`begin`."""
        self.reductions += 1
        return reduce_gradients(
            gradients, self.variables, scope=self.scope, options=self.options, local=frozenset(self.local)
        )

    def restore(self, variables: Sequence[Any]) -> None:
        """Gives the optimizer, now built, the values that it was made with."""
        saved, self.saved = self.saved, []
        if len(saved) == len(variables):
            for variable, value in zip(variables, saved, strict=True):
                variable.assign(value)


def state_of(optimizer: Any) -> OptimizerState | None:
    """The state of a distributed optimizer; None of any other."""
    state = getattr(optimizer, "__dict__", {}).get(ATTRIBUTE)
    return state if isinstance(state, OptimizerState) else None


def distributed_part(optimizer: Any) -> OptimizerState | None:
    """The state of `optimizer`, or of the one inside it if it is a LossScaleOptimizer."""
    return state_of(optimizer) or state_of(getattr(optimizer, "inner_optimizer", None))
