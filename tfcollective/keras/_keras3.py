"""Keras 3: reduces where an update's gradients are complete and before anything is done with them.

``fit`` and custom loops all come through ``apply``, which filters gradients, undoes a fixed loss scale and calls
``_backend_apply_gradients``; that accumulates over micro-batches if asked to and calls ``_clip_gradients`` once an
update, inside the branch that updates. So reducing at the start of ``_clip_gradients`` gives the order reduce, clip,
decay, update, EMA, and one reduction an update whatever the number of micro-batches.

A class of the user's own may change gradients on their way there, as one that clips them. Then they are reduced before
its method is called, with several micro-batches those of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import InternalError, UnsupportedError
from tfcollective._runtime.communicator import Max
from tfcollective.keras._mixin import DistributedMixin, is_of_keras
from tfcollective.keras._parallel.step import weigh
from tfcollective.tensorflow._functions import allreduce, merged

_HOOKS = ("apply", "_backend_apply_gradients", "_clip_gradients", "_overwrite_variables_directly_with_gradients")


def check_hooks(kind: type) -> None:
    """Raises UnsupportedError if this Keras, or this class of optimizer, has not the methods that we lean on."""
    missing = [name for name in _HOOKS if not hasattr(kind, name)]
    if missing:
        raise UnsupportedError(f"{kind.__name__} of this Keras version lacks {', '.join(missing)}")
    base = next(c for c in reversed(kind.__mro__) if "_clip_gradients" in vars(c))
    if any("apply" in vars(c) and c is not base for c in kind.__mro__ if is_of_keras(c)):
        raise UnsupportedError(
            f"{kind.__name__} has an apply() of its own: make a DistributedOptimizer of each optimizer inside it"
        )


def _is_overwritten(variable: Any) -> bool:
    return bool(getattr(variable, "overwrite_with_gradient", False))


class Keras3Mixin(DistributedMixin):
    """Stands before the optimizer's class."""

    def build(self, variables: Any) -> None:
        """Builds as the optimizer does; then takes over the state that the optimizer was made with."""
        base: Any = super()
        base.build(variables)
        this: Any = self
        self._tfcollective.restore(this.variables)

    def _overwrite_variables_directly_with_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> Any:  # noqa: A002  # Keras's name
        """float8 scales and histories come as "gradients" that replace the variable: all ranks take the largest."""
        base: Any = super()
        process_set = self._tfcollective.options.process_set
        members = runtime.members(process_set, outside=True)
        if not members.alone and members.included:
            grads = [
                allreduce(g, op=Max, process_set=process_set) if g is not None and _is_overwritten(v) else g
                for g, v in zip(grads, vars, strict=True)
            ]
        return base._overwrite_variables_directly_with_gradients(grads, vars)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        """Applies gradients as the optimizer does, but those of all ranks."""
        base: Any = super()
        with self._tfcollective.update():
            pairs = list(grads_and_vars)
            if self._tfcollective_reduces_first and pairs:
                gradients, variables = zip(*pairs, strict=True)
                pairs = list(zip(self.reduced_first(gradients, variables), variables, strict=True))
            return base.apply_gradients(pairs, *args, **kwargs)

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """Applies gradients as the optimizer does, but those of all ranks."""
        base: Any = super()
        this: Any = self
        with self._tfcollective.update():
            if trainable_variables is not None:
                trainable_variables = list(trainable_variables)
            if self._tfcollective_reduces_first and grads:
                variables = this._trainable_variables if trainable_variables is None else trainable_variables
                grads = self.reduced_first(grads, variables)
            elif not self._tfcollective.is_reduced:
                grads = weigh(grads, self)
            return base.apply(grads, trainable_variables)

    def reduced_first(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks, for what changes or judges them before the update."""
        weighed = gradients if self._tfcollective.is_reduced else weigh(gradients, self)
        return self._tfcollective.reduce_first(self, weighed, variables, [_is_overwritten(v) for v in variables])

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        base: Any = super()
        this: Any = self
        state = self._tfcollective
        with state.update():
            if not state.is_reduced:
                state.begin(self, trainable_variables, grads)
            base._backend_apply_gradients(grads, trainable_variables)
            if not state.is_reduced and not this.gradient_accumulation_steps:
                raise InternalError("this version of Keras applied gradients that were not reduced: please report it")

    def _clip_gradients(self, grads: Any) -> Any:
        base: Any = super()
        state = self._tfcollective
        return base._clip_gradients(grads if state.is_reduced else state.reduce(grads))

    def assign_add(self, variable: Any, value: Any) -> None:
        """Adds as the optimizer does; equal rows in the same order on all ranks."""
        base: Any = super()
        base.assign_add(variable, self._in_order(value))

    def assign_sub(self, variable: Any, value: Any) -> None:
        """Subtracts as the optimizer does; equal rows in the same order on all ranks."""
        base: Any = super()
        base.assign_sub(variable, self._in_order(value))

    def _in_order(self, value: Any) -> Any:
        rows_are_apart = self._tfcollective.divided and isinstance(value, tf.IndexedSlices)
        return merged(value) if rows_are_apart else value
