"""What ``DistributedOptimizer`` adds to an optimizer. A plain object, so that Keras neither tracks nor saves it."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfcollective.log import get_logger
from tfcollective.tensorflow.aggregation import Passes
from tfcollective.tensorflow.gradients import GradientOptions, LocalVariables, reduce_gradients, variable_key
from tfcollective.tensorflow.guard import ReplicaGuards

ATTRIBUTE = "_tfcollective"
_LOG = get_logger(__name__)
# By the ranks of the process set: a rank counts only the optimizers of its sets as the other members do.
_counts: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)


class OptimizerState:
    """One distributed optimizer's options, local variables and guard.

    Attributes:
        options: how gradients are reduced.
        passes: how many backward passes make an update.
        local: the variables that stay this rank's own.
        factor: reduced gradients are multiplied by it.
        aggregation: adds up the gradients of several backward passes, where Keras does not.
        variables: those of the update that is being built.
        checked: the guard's look at them, which their gradients' reduction comes after.
        reductions: how often gradients were reduced (or, with one rank, would have been) while building updates.
        saved: values to give to the optimizer's variables once they exist: those of the optimizer it was made from.
        when_built: called once they exist.
        weight: a variable by which this rank's gradients are multiplied before they are reduced, where ranks have
            shares of a global batch; else None.
    """

    def __init__(
        self,
        options: GradientOptions | None = None,
        passes: Passes | None = None,
        saved: Sequence[Any] = (),
        local: LocalVariables | None = None,
    ) -> None:
        self.options = options or GradientOptions()
        self.passes = passes or Passes()
        self.local = local or LocalVariables()
        self.factor = float(self.passes.count) if self.passes.by_keras and not self.passes.average else 1.0
        self.aggregation = self.passes.aggregation()
        self.variables: list[Any] = []
        self.checked: list[Any] = []
        self.reductions = 0
        self.saved = list(saved)
        self.when_built: list[Callable[[], None]] = []
        self.weight: Any = None

    def copy(self, saved: Sequence[Any] = ()) -> OptimizerState:
        """That of another optimizer which reduces as this one does."""
        return OptimizerState(self.options, self.passes, saved, self.local.copy())

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizerState:
        """:meth:`copy`: options and variables are the program's."""
        del memo
        return self.copy()

    @functools.cached_property
    def scope(self) -> str:
        """Names its plans, from its first use on; optimizers must be used in the same order on all ranks."""
        ranks = self.options.process_set.ranks if self.options.process_set is not None else None
        return f"keras_optimizer.{next(_counts[tuple(ranks or ())])}"

    @functools.cached_property
    def guard(self) -> ReplicaGuards:
        """Compares the ranks' variables now and then."""
        return ReplicaGuards(self.scope, self.options.process_set)

    def begin(self, variables: Sequence[Any]) -> None:
        """An update of these variables is being built."""
        self.variables = list(variables)
        local = self.local.keys()
        self.checked = self.guard.step([v for v in self.variables if variable_key(v) not in local])

    def reduce(self, gradients: Sequence[Any]) -> list[Any]:
        """Reduces the gradients of the variables of :meth:`begin`."""
        self.reductions += 1
        if self.weight is not None:
            gradients = [_times(gradient, self.weight) for gradient in gradients]
        with tf.control_dependencies(self.checked):
            reduced = reduce_gradients(
                gradients, self.variables, scope=self.scope, options=self.options, local=self.local.keys()
            )
        return reduced if self.factor == 1.0 else [_times(gradient, self.factor) for gradient in reduced]

    def restore(self, variables: Sequence[Any]) -> None:
        """Gives the optimizer, now built, the values that it was made with: once, also where a step is being traced."""
        with tf.init_scope():
            saved, self.saved = self.saved, []
            if [tuple(value.shape) for value in saved] == [tuple(variable.shape) for variable in variables]:
                for variable, value in zip(variables, saved, strict=True):
                    variable.assign(value)
            elif saved:
                _LOG.warning("a copied optimizer is used for other variables: it begins anew")
            waiting, self.when_built = self.when_built, []
            for call in waiting:
                call()


def _times(gradient: Any, factor: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_times(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return None if gradient is None else gradient * tf.cast(factor, gradient.dtype)


def state_of(optimizer: Any) -> OptimizerState | None:
    """The state of a distributed optimizer; None of any other."""
    state = getattr(optimizer, "__dict__", {}).get(ATTRIBUTE)
    return state if isinstance(state, OptimizerState) else None
