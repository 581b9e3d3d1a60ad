"""The state that ``DistributedOptimizer`` adds to an optimizer: a plain object, not tracked or saved by Keras."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective._base.log import get_logger
from tfcollective._runtime.communicator import Sum
from tfcollective.keras._noise_sums import NoiseSums
from tfcollective.tensorflow._aggregation import Passes
from tfcollective.tensorflow._finite import FiniteCheck
from tfcollective.tensorflow._functions import allreduce
from tfcollective.tensorflow._gradients import GradientOptions, LocalVariables, reduce_gradients, variable_key
from tfcollective.tensorflow._guard import ReplicaGuards, after_data
from tfcollective.tensorflow._helpers import size_in_graph
from tfcollective.tensorflow._reductions import DistributedUpdate, is_marked

ATTRIBUTE = "_tfcollective"
_LOG = get_logger(__name__)
# By the ranks of the process set: a rank counts only the optimizers of its sets as the other members do.
_counts: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)


class OptimizerState:
    """The options, local variables and guard of a distributed optimizer.

    Attributes:
        options: how gradients are reduced.
        passes: how many backward passes make an update.
        local: the variables that stay this rank's own.
        divided: Keras's trainer divides batches, for which the user's optimizer has become a distributed one.
        factor: reduced gradients are multiplied by it.
        aggregation: adds up the gradients of several backward passes, where Keras does not.
        variables: those of the update that is being built.
        checked: the guard's look at them, which their gradients' reduction comes after.
        is_updating: whether the optimizer makes an update.
        is_reduced: within an update, whether its gradients are reduced (or, with one rank, would have been).
        is_aggregated: whether gradients were reduced for an update that is to come, as Keras 2's loss scalers ask for.
        saved: values to give to the optimizer's variables once they exist: those of the optimizer it was made from.
        when_built: called once they exist.
        weight: a variable by which this rank's gradients are multiplied before they are reduced, where ranks have
            shares of a global batch; else None.
        counted: a variable: how much this rank's loss is a mean over, where gradients count by that; else None.
        noise: estimates the noise of gradients where they are reduced; None: nobody has asked for it.
    """

    def __init__(
        self,
        options: GradientOptions | None = None,
        passes: Passes | None = None,
        saved: Sequence[Any] = (),
        local: LocalVariables | None = None,
        *,
        divided: bool = False,
    ) -> None:
        self.divided = divided
        self.options = options or GradientOptions()
        self.passes = passes or Passes()
        self.local = local or LocalVariables()
        self.factor = float(self.passes.count) if self.passes.by_keras and not self.passes.average else 1.0
        self.aggregation = self.passes.aggregation()
        self.variables: list[Any] = []
        self.checked: list[Any] = []
        self.is_reduced = False
        self.is_aggregated = False
        self.is_updating = False
        self.saved = list(saved)
        self.when_built: list[Callable[[], None]] = []
        self.weight: Any = None
        self.counted: Any = None
        self.noise: NoiseSums | None = None
        self._optimizer: Callable[[], Any] = lambda: None

    def copy(self, saved: Sequence[Any] = ()) -> OptimizerState:
        """Returns the state of another optimizer which reduces as this one does."""
        return OptimizerState(self.options, self.passes, saved, self.local.copy(), divided=self.divided)

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
        return ReplicaGuards(self.scope, self.options.process_set, self.options.replica_check, self._resynced)

    def _resynced(self) -> list[Any]:
        """Returns the optimizer's variables that a resync makes the first rank's. Gradients of passes are each rank's
        own; so is the state of local variables, and which variable is part of it optimizers do not say."""
        optimizer = self._optimizer()
        if optimizer is None or self.local.keys():
            return []
        passes = {variable_key(v) for v in getattr(optimizer, "_accumulated_gradients", None) or () if v is not None}
        variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        return [one for one in variables if variable_key(one) not in passes]

    @property
    def communicates(self) -> bool:
        """True where gradients of one rank are not those of all."""
        return runtime.is_initialized() and not runtime.members(self.options.process_set, outside=True).alone

    @property
    def takes_part(self) -> bool:
        """True if this rank's gradients are reduced with those of others."""
        return self.communicates and runtime.members(self.options.process_set, outside=True).included

    def update(self) -> Update:
        """A context in which the optimizer makes an update; it may be entered again within itself."""
        return Update(self)

    def check_updating(self, optimizer: Any) -> None:
        """Raises UnsupportedError outside of :meth:`update`, where an optimizer around this one reduces nothing."""
        if not self.is_updating and self.communicates:
            name = type(optimizer).__name__
            raise UnsupportedError(
                f"DistributedOptimizer: the update of {name} was called without its apply_gradients, as optimizers do "
                "that wrap another, so the gradients would not be reduced. Make the outer one distributed: "
                f"DistributedOptimizer(Outer({name}(...)))"
            )

    def reduce_first(
        self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], kept: Sequence[bool]
    ) -> list[Any]:
        """Reduces before a method of the user's own class is given the gradients; once an update.

        Args:
            kept: which ones stay as they are, as do those that are None.
        """
        reduced = list(gradients)
        if self.is_reduced:
            return reduced
        places = [place for place, keep in enumerate(kept) if not keep and gradients[place] is not None]
        mine = [gradients[place] for place in places]
        self.begin(optimizer, [variables[place] for place in places], mine)
        for place, result in zip(places, self.reduce(mine), strict=True):
            reduced[place] = result
        return reduced

    @functools.cached_property
    def finite(self) -> FiniteCheck:
        """The check that finds where NaN begins, if it is enabled."""
        return FiniteCheck()

    def begin(self, optimizer: Any, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        """An update of these variables by this optimizer is being built, with these gradients of this rank."""
        self._optimizer = weakref.ref(optimizer)
        self.variables = list(variables)
        local = self.local.keys()
        with after_data(gradients):
            self.checked = self.guard.step([v for v in self.variables if variable_key(v) not in local])

    def reduce(self, gradients: Sequence[Any]) -> list[Any]:
        """Reduces the gradients of the variables of :meth:`begin`.

        Raises:
            InvalidArgumentError: a tape has reduced them already.
        """
        self.is_reduced = True
        self._check_once(gradients)
        for factor in (self.weight, self._share()):
            if factor is not None:
                gradients = [_times(gradient, factor) for gradient in gradients]
        with tf.control_dependencies([*self.checked, *self.finite.step(gradients, self.variables)]):
            if self.noise is not None and self.takes_part:
                reduced = self.noise.reduced(gradients, self.variables, self.options, self.local.keys(), self._reduce)
            else:
                reduced = self._reduce(gradients, self.variables)
        return reduced if self.factor == 1.0 else [_times(gradient, self.factor) for gradient in reduced]

    def _reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return reduce_gradients(
            gradients,
            variables,
            scope=self.scope,
            options=self.options,
            local=self.local.keys(),
            adds_rows=not self.divided,
        )

    def _share(self) -> Any:
        """Returns the factor of a gradient that weights the average by what the ranks have counted."""
        members = runtime.members(self.options.process_set, outside=True)
        if self.counted is None or members.alone or not members.included:
            return None
        mine = tf.convert_to_tensor(self.counted)
        name = f"{self.scope}/counted"
        everyones = allreduce(mine, op=Sum, name=name, process_set=self.options.process_set)
        share = mine * tf.cast(size_in_graph(members), mine.dtype) / everyones
        return tf.where(everyones > 0, share, tf.ones_like(share))

    def _check_once(self, gradients: Sequence[Any]) -> None:
        members = runtime.members(self.options.process_set, outside=True)
        if members.alone:
            return
        if any(is_marked(one, members.process_set_id) for one in gradients if one is not None):
            raise InvalidArgumentError(
                "DistributedOptimizer: these gradients are from a DistributedGradientTape, which has reduced them, and "
                "would be reduced twice: use either the tape or DistributedOptimizer"
            )

    def restore(self, variables: Sequence[Any]) -> None:
        """Gives the optimizer, now built, the values that it was made with: once, also where a step is being traced."""
        with tf.init_scope():
            saved, self.saved = self.saved, []
            if [tuple(value.shape) for value in saved] == [tuple(variable.shape) for variable in variables]:
                for variable, value in zip(variables, saved, strict=True):
                    variable.assign(value)
            elif saved:
                _LOG.warning("a copied optimizer is used for other variables: it starts from the beginning")
            waiting, self.when_built = self.when_built, []
            for call in waiting:
                call()


class Update:
    """See :meth:`OptimizerState.update`."""

    def __init__(self, state: OptimizerState) -> None:
        self._state = state

    def __enter__(self) -> None:
        self._outermost = not self._state.is_updating
        if self._outermost:
            self._state.is_updating = True
            self._inside = DistributedUpdate()
            self._inside.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._outermost:
            self._inside.__exit__(*error)
            self._state.is_updating = self._state.is_reduced = False


def _times(gradient: Any, factor: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_times(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return None if gradient is None else gradient * tf.cast(factor, gradient.dtype)


def state_of(optimizer: Any) -> OptimizerState | None:
    """The state of a distributed optimizer; None of any other."""
    state = getattr(optimizer, "__dict__", {}).get(ATTRIBUTE)
    return state if isinstance(state, OptimizerState) else None
