"""Keras 2 (TensorFlow 2.15): both kinds of optimizer have a step that aggregates over replicas. It comes after the
gradients are complete, before clipping, and a LossScaleOptimizer takes it before it looks for infinities."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfcollective._base.errors import InternalError, UnsupportedError
from tfcollective.keras._mixin import DistributedMixin, own_methods
from tfcollective.keras._parallel.step import weigh

# With these a class changes gradients before apply_gradients is given them, or reduces them itself.
_BEFORE = ("compute_gradients", "aggregate_gradients")
_BEFORE_OF_LEGACY = ("_compute_gradients", "_get_gradients", "get_gradients", "_aggregate_gradients")
_SKIPPED = (
    "apply_gradients: skip_gradients_aggregation=True and experimental_aggregate_gradients=False keep a "
    "DistributedOptimizer from reducing the gradients, so that each rank would train alone. Leave the argument out. "
    "Where a DistributedGradientTape has reduced them, use the optimizer without DistributedOptimizer"
)


def check_methods(kind: type) -> None:
    """Raises UnsupportedError if the class changes gradients where they cannot be reduced before."""
    own = own_methods(kind, _BEFORE if hasattr(kind, "aggregate_gradients") else _BEFORE_OF_LEGACY)
    if own:
        raise UnsupportedError(
            f"DistributedOptimizer: {kind.__name__} has a method {own[0]} of its own, which would see the gradients of "
            "this rank only: change them in apply_gradients, which is given those of all ranks"
        )


class _Keras2Base(DistributedMixin):
    """The common base of both kinds. Names of its own begin with ``_tfcollective``: the optimizer's class comes after
    it, and has methods like ``_prepare``."""

    _tfcollective_flag_skips: bool  # what a flag after the name means, where it is given by its place

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        """Applies gradients as the optimizer does, with those of all ranks.

        With several backward passes a step, it updates after the last of them only.

        Raises:
            UnsupportedError: an argument says that gradients must not be reduced.
        """
        aggregation = self._tfcollective.aggregation
        with self._tfcollective.update():
            if aggregation is None:
                return self._tfcollective_update(list(grads_and_vars), args, kwargs)
            pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
            self._tfcollective_build([variable for _, variable in pairs])
            this: Any = self
            return aggregation.step(
                pairs,
                lambda totals: self._tfcollective_update(totals, args, kwargs),
                lambda: this.iterations.assign_add(1),  # it counts passes
            )

    def _tfcollective_update(self, pairs: list[tuple[Any, Any]], args: Any, kwargs: Any) -> Any:
        base: Any = super()
        state = self._tfcollective
        skips = self._tfcollective_skips(args, kwargs)
        state.is_reduced, state.is_aggregated = skips and state.is_aggregated, False
        if skips and not state.is_reduced and state.communicates:
            raise UnsupportedError(_SKIPPED)
        if self._tfcollective_reduces_first and not state.is_reduced and pairs:
            gradients, variables = zip(*pairs, strict=True)
            reduced = state.reduce_first(self, weigh(gradients, self), variables, [False] * len(pairs))
            pairs = list(zip(reduced, variables, strict=True))
        result = base.apply_gradients(pairs, *args, **kwargs)
        if pairs and not state.is_reduced and state.communicates:
            raise InternalError("this version of Keras applied gradients that were not reduced: please report it")
        return result

    def _tfcollective_skips(self, args: Any, kwargs: Any) -> bool:
        """True if arguments of apply_gradients say that the gradients are reduced already."""
        flag = args[1] if len(args) > 1 else None  # after the name
        if flag is not None:
            return bool(flag) == self._tfcollective_flag_skips
        return bool(kwargs.get("skip_gradients_aggregation")) or not kwargs.get(
            "experimental_aggregate_gradients", True
        )

    def _tfcollective_build(self, variables: list[Any]) -> None:
        """Makes the optimizer's variables; it cannot be done inside a branch."""

    def _tfcollective_reduce(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        pairs = list(grads_and_vars)
        state = self._tfcollective
        if not pairs or (state.is_updating and state.is_reduced):
            return pairs
        gradients, variables = zip(*pairs, strict=True)
        if state.communicates and state.options.replica_check.effective_action == "resync":
            self._tfcollective_build(list(variables))  # a resync assigns to the optimizer's variables, too
        state.begin(self, variables, gradients)
        reduced = list(zip(state.reduce(weigh(gradients, self)), variables, strict=True))
        state.is_aggregated = not state.is_updating
        return reduced


class Keras2Mixin(_Keras2Base):
    """Stands before the class of a ``tf.keras.optimizers.Optimizer``."""

    _tfcollective_flag_skips = True

    def build(self, var_list: Any) -> None:
        """Builds as the optimizer does; then takes over the state that the optimizer was made with."""
        base: Any = super()
        base.build(var_list)
        this: Any = self
        self._tfcollective.restore(this.variables)

    def _tfcollective_build(self, variables: list[Any]) -> None:
        with tf.init_scope():
            self.build(variables)

    def aggregate_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Reduces over the ranks."""
        return self._tfcollective_reduce(grads_and_vars)


class Keras2LegacyMixin(_Keras2Base):
    """Stands before the class of a ``tf.keras.optimizers.legacy.Optimizer``."""

    _tfcollective_flag_skips = False

    def _tfcollective_build(self, variables: list[Any]) -> None:
        this: Any = self
        with tf.init_scope():
            this._create_all_weights(variables)

    def _aggregate_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        return self._tfcollective_reduce(grads_and_vars)
