"""Keras 3: reduces where an update's gradients are complete and before anything is done with them.

``fit`` and custom loops all come through ``apply``, which filters gradients, undoes a fixed loss scale and calls
``_backend_apply_gradients``; that accumulates over micro-batches if asked to and calls ``_clip_gradients`` once an
update, inside the branch that updates. So reducing at the start of ``_clip_gradients`` gives the order reduce, clip,
decay, update, EMA, and one reduction an update whatever the number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfcollective import runtime
from tfcollective.communicator import Max
from tfcollective.errors import InternalError, UnsupportedError
from tfcollective.keras.mixin import DistributedMixin
from tfcollective.tensorflow.functions import allreduce

_HOOKS = ("apply", "_backend_apply_gradients", "_clip_gradients", "_overwrite_variables_directly_with_gradients")


def check_hooks(kind: type) -> None:
    """Raises UnsupportedError if this Keras, or this class of optimizer, has not the methods that we lean on."""
    missing = [name for name in _HOOKS if not hasattr(kind, name)]
    if missing:
        raise UnsupportedError(f"{kind.__name__} of this Keras version lacks {', '.join(missing)}")
    base = next(c for c in reversed(kind.__mro__) if "_clip_gradients" in vars(c))
    if kind.apply is not base.apply:  # type: ignore[attr-defined]
        raise UnsupportedError(
            f"{kind.__name__} has an apply() of its own: make a DistributedOptimizer of each optimizer inside it"
        )


def _is_overwritten(variable: Any) -> bool:
    return bool(getattr(variable, "overwrite_with_gradient", False))


class Keras3Mixin(DistributedMixin):
    """Stands before the optimizer's class."""

    def build(self, variables: Any) -> None:
        """As the optimizer's; then takes over the state that the optimizer was made with."""
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

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        state = self._tfcollective
        state.begin(trainable_variables)
        before = state.reductions
        base: Any = super()
        base._backend_apply_gradients(grads, trainable_variables)
        this: Any = self
        if state.reductions == before and not this.gradient_accumulation_steps:
            raise InternalError("this version of Keras applied gradients that were not reduced: please report it")

    def _clip_gradients(self, grads: Any) -> Any:
        base: Any = super()
        return base._clip_gradients(self._tfcollective.reduce(grads))
