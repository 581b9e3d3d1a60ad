"""Notes, while steps are built or run, what reduces in this process: training that does not is an error.

Functions that are traced already run without a note. So a tape counts from its first use on, as long as the process
lives, and so do the program's own reductions in a function. Those in eager code do not count in a later ``fit``, and
tapes not where Keras's own training step takes the gradients: see :func:`training`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

_MARK = "_tfcollective_reduced_by_a_tape"
# What is done with a gradient between a tape and an optimizer, such as clipping and scaling, in a graph.
_PASSED = frozenset(
    {"AddN", "AddV2", "Cast", "ClipByValue", "Identity", "IdentityN", "Maximum", "Minimum", "Mul", "Neg"}
    | {"PreventGradient", "RealDiv", "SelectV2", "Sub"}
)


@dataclass
class _Notes:
    tapes: int = 0
    traced: int = 0
    reductions: int = 0
    updates: int = 0


class _Inside(threading.local):
    update = False


_notes = _Notes()
_inside = _Inside()


def note_tape() -> None:
    """A ``DistributedGradientTape`` reduces gradients."""
    _notes.tapes += 1


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
    may be those of a loop that goes on after it.

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
    """What is reduced within it is tfcollective's own, and no gradient."""
    before, _inside.update = _inside.update, True
    try:
        yield
    finally:
        _inside.update = before


def updates() -> int:
    """The number of updates that distributed optimizers have begun."""
    return _notes.updates


def are_noted() -> bool:
    """True if the gradients of an update that is made now may have been reduced."""
    return _inside.update or _notes.tapes + _notes.traced + _notes.reductions > 0


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
    pending, seen = [_tensor(gradient)], set()
    while pending:
        tensor = pending.pop()
        if getattr(tensor, _MARK, None) == process_set_id:
            return True
        if tf.is_symbolic_tensor(tensor) and tensor.op.type in _PASSED and id(tensor.op) not in seen:
            seen.add(id(tensor.op))
            pending += tensor.op.inputs
    return False


def _tensor(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
