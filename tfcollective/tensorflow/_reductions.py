"""Notes, while steps are built or run, what reduces in this process: training that does not is an error.

Functions that are traced already run without a note. So a tape counts from its first use on, as long as the process
lives, and so do the program's own reductions in a function. Those in eager code do not count in a later ``fit``, nor
for gradients that the traced function itself has computed, and tapes not where Keras's own training step takes the
gradients: see :func:`training` and :func:`are_noted`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

_MARK = "_tfcollective_reduced_by_a_tape"
# What is done with a gradient between a tape and an optimizer, such as clipping and scaling, in a graph.
_PASSED = frozenset(
    {"AddN", "AddV2", "Cast", "ClipByValue", "Identity", "IdentityN", "Maximum", "Minimum", "Mul", "Neg"}
    | {"PreventGradient", "RealDiv", "SelectV2", "Sub"}
)
_OF_A_TAPE = "gradient_tape/"  # TensorFlow's name scope of operations that a tape has added to a graph


class _Variables(weakref.WeakValueDictionary[int, Any]):
    """Variables by their keys, as long as they live."""


@dataclass
class _Notes:
    """`taken`: variables that distributed tapes have taken gradients of; `other_sources`: tapes also have of what is no
    variable; `updated`: variables that optimizers update without being distributed."""

    taken: _Variables = field(default_factory=_Variables)
    other_sources: bool = False
    updated: _Variables = field(default_factory=_Variables)
    tapes: int = 0
    traced: int = 0
    reductions: int = 0
    updates: int = 0


class _Inside(threading.local):
    update = False


_notes = _Notes()
_inside = _Inside()


def note_tape(variables: Mapping[int, Any], other_sources: bool) -> None:
    """A ``DistributedGradientTape`` reduces gradients.

    Args:
        variables: that it takes gradients of, by their keys.
        other_sources: it takes some of what is no variable, too.
    """
    _notes.tapes += 1
    _notes.taken.update(variables)
    _notes.other_sources |= other_sources


def note_reduction() -> None:
    """The program reduces tensors itself, which may be gradients."""
    if _inside.update:
        return
    if tf.inside_function():
        _notes.traced += 1
    else:
        _notes.reductions += 1


@contextmanager
def training(*, own_step: bool) -> Iterator[None]:
    """Keras trains a model within it: what eager code has reduced before it were not this training's gradients. They
    may be those of a loop that continues after it.

    Args:
        own_step: the model has a training step of its own, which may use a tape. Keras's does not.
    """
    tapes, reductions = _notes.tapes, _notes.reductions
    _notes.reductions = 0
    if not own_step:
        _notes.tapes = 0
    try:
        yield
    finally:
        _notes.reductions += reductions
        if not own_step:
            _notes.tapes += tapes


@contextmanager
def unnoted() -> Iterator[None]:
    """Marks reductions within the context as tfcollective's own, not gradients."""
    before, _inside.update = _inside.update, True
    try:
        yield
    finally:
        _inside.update = before


def updates() -> int:
    """The number of updates that distributed optimizers have begun."""
    return _notes.updates


def are_noted(gradients: Iterable[Any]) -> bool:
    """True if these, of an update that is made now, may have been reduced."""
    if _inside.update or _notes.tapes + _notes.traced > 0:
        return True
    return _notes.reductions > 0 and not any(_is_computed_here(one) for one in gradients if one is not None)


def are_without_tape(variables: Mapping[int, Any]) -> bool:
    """True if no tape has taken gradients of these, and all that tapes have taken went to other updates. Once for the
    same variables.

    Args:
        variables: of an update that is made now, by their keys.
    """
    taken, updated = set(_notes.taken), set(_notes.updated)
    _notes.updated.update(variables)
    if _inside.update or _notes.traced + _notes.reductions > 0 or _notes.other_sources:
        return False  # they may have been reduced in another way
    new = bool(variables.keys() - updated)
    return new and bool(taken) and taken <= updated and taken.isdisjoint(variables)


class DistributedUpdate:
    """A context in which a distributed optimizer makes an update: it reduces for all optimizers that it calls."""

    def __enter__(self) -> None:
        _notes.updates += 1
        self._before, _inside.update = _inside.update, True

    def __exit__(self, *_error: object) -> None:
        _inside.update = self._before


def mark(gradient: Any, process_set_id: int) -> None:
    """Marks a gradient as one that a tape has reduced over a process set."""
    setattr(_tensor(gradient), _MARK, process_set_id)


def is_marked(gradient: Any, process_set_id: int) -> bool:
    """True for a gradient that a tape has reduced over this process set; in a graph, also if it was clipped since."""
    return any(getattr(tensor, _MARK, None) == process_set_id for tensor in _back(gradient))


def _is_computed_here(gradient: Any) -> bool:
    """True if a tape in the function that is traced now has computed it: it was not given to the function."""
    ops = [tensor.op for tensor in _back(gradient) if tf.is_symbolic_tensor(tensor)]
    return any(_OF_A_TAPE in op.name for op in ops) and not any(op.type == "Placeholder" for op in ops)


def _back(gradient: Any) -> Iterator[Any]:
    """Yields its tensor; in a graph, also those from which it came by clipping and scaling."""
    pending, seen = [_tensor(gradient)], set()
    while pending:
        tensor = pending.pop()
        yield tensor
        if tf.is_symbolic_tensor(tensor) and tensor.op.type in _PASSED and id(tensor.op) not in seen:
            seen.add(id(tensor.op))
            pending += tensor.op.inputs


def _tensor(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
