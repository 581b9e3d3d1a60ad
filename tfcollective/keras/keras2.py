"""Keras 2 (TensorFlow 2.15): both kinds of optimizer have a step that aggregates over replicas. It comes after the
gradients are complete, before clipping, and a LossScaleOptimizer takes it before it looks for infinities."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfcollective.keras.mixin import DistributedMixin


class _Keras2Base(DistributedMixin):
    """What both kinds have in common. Names of its own begin with ``_tfcollective``: the optimizer's class comes after
    it, and has methods like ``_prepare``."""

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's; with several backward passes a step, it updates after the last of them only."""
        base: Any = super()
        aggregation = self._tfcollective.aggregation
        if aggregation is None:
            return base.apply_gradients(grads_and_vars, *args, **kwargs)
        pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
        self._tfcollective_build([variable for _, variable in pairs])
        this: Any = self
        return aggregation.step(
            pairs,
            lambda totals: base.apply_gradients(totals, *args, **kwargs),
            lambda: this.iterations.assign_add(1),  # it counts passes
        )

    def _tfcollective_build(self, variables: list[Any]) -> None:
        """Makes the optimizer's variables; it cannot be done inside a branch."""

    def _tfcollective_reduce(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        pairs = list(grads_and_vars)
        if not pairs:
            return pairs
        gradients, variables = zip(*pairs, strict=True)
        self._tfcollective.begin(variables)
        return list(zip(self._tfcollective.reduce(gradients), variables, strict=True))


class Keras2Mixin(_Keras2Base):
    """Stands before the class of a ``tf.keras.optimizers.Optimizer``."""

    def build(self, var_list: Any) -> None:
        """As the optimizer's; then takes over the state that the optimizer was made with."""
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

    def _tfcollective_build(self, variables: list[Any]) -> None:
        this: Any = self
        with tf.init_scope():
            this._create_all_weights(variables)

    def _aggregate_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        return self._tfcollective_reduce(grads_and_vars)
